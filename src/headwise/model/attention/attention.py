"""Where chosen heads look: rows, columns, profiles and whole maps of their attention, and nothing more.

The model runs as always, fused attention included; only for the chosen heads are the weights computed, from the
queries and keys that the attention function is given, and reduced block by block of queries. A profile of a
long text therefore never holds a map. Prompts of different length share a batch, padded on the right: later
tokens cannot reach earlier ones, and padding is left out of every number.

B rows of a batch, h chosen heads (of one layer, or of all), T tokens, s keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import torch
from torch import Tensor

from headwise.display import counted, cut_in_the_middle, html_table, joined_tokens
from headwise.errors import HeadwiseError, quoted
from headwise.heads import Head, at_least_one, head_list
from headwise.model.attention.weights import attention_blocks, watchable
from headwise.model.forward.schedule import batches
from headwise.model.sites.probe import widened
from headwise.model.tokens.encode import pad_right

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack

    from headwise.model.model import Model
    from headwise.tasks.opening import TaskLike

Prompt = str | Sequence[int]
"""A text, or its token ids."""
Heads = Head | str | Iterable[Head | str] | None
"""One head, several, or None for every head."""

_MOST_SHOWN = 20
"""Heads that a notebook shows."""
LARGEST_MAPS = 2 * 2**30
"""Maximum size of whole maps over all prompts, in numbers: 8 GB in float32."""


@dataclass(frozen=True, repr=False)
class Attention:
    """What chosen heads attend to in one prompt. h heads, T tokens, Q rows and K columns that were asked for.

    Row i of a map is a query: its numbers are the shares of attention that token i gives to itself and to
    earlier tokens. They sum to 1, or to less where the model has attention sinks.
    """

    model: str
    heads: list[Head]
    tokens: list[str]
    """The prompt's tokens as readable strings."""
    ids: list[int]
    profile: np.ndarray  # h, T
    """For key j, the mean over all later queries i > j of attention(i, j); NaN for the first key (the attention
    sink, which would dwarf all others; `columns` has it) and for the last, which no later query can reach."""
    queries: list[int]
    """Positions of the tokens whose rows were asked for."""
    rows: np.ndarray  # h, Q, T
    keys: list[int]
    """Positions of the tokens whose columns were asked for."""
    columns: np.ndarray  # h, T, K
    maps: np.ndarray | None = field(default=None, repr=False)  # h, T, T

    def __repr__(self) -> str:
        some = ", ".join(map(str, self.heads[:3])) + ", …" * (len(self.heads) > 3)
        maps = ", with whole maps" if self.maps is not None else ""
        return (
            f"Attention({self.model}: {counted(len(self.heads), 'head')} ({some}) on "
            f"{len(self.tokens)} tokens {cut_in_the_middle(joined_tokens(self.tokens), 60)!r}{maps})"
        )

    def _repr_html_(self) -> str:
        """In a notebook, for each head and each row that was asked for, the tokens that get most attention."""
        rows = []
        for head, of_head in list(zip(self.heads, self.rows, strict=True))[:_MOST_SHOWN]:
            for query, row in zip(self.queries, of_head, strict=True):
                most = np.argsort(-row[: query + 1])[:5]
                targets = ", ".join(f"{self.tokens[key]!r} ({key}) {row[key]:.2f}" for key in most)
                rows.append((head, f"{self.tokens[query]!r} ({query})", targets))
        of = f" (the first {_MOST_SHOWN} of {len(self.heads)} heads)" * (len(self.heads) > _MOST_SHOWN)
        title = f"Attention, {self.model}, {len(self.tokens)} tokens{of}"
        return html_table(
            title, ["head", "from token (position)", "to tokens (position) with the largest share"], rows
        )

    def index(self, head: Head | str) -> int:
        """The index of a head on the first axis of every array."""
        (parsed,) = head_list([head])
        if parsed not in self.heads:
            raise HeadwiseError(f"this result has no head {parsed}; it has {', '.join(map(str, self.heads))}")
        return self.heads.index(parsed)

    def table(self) -> pd.DataFrame:
        """The profiles as a table: one row per head and key."""
        import pandas as pd

        length = len(self.tokens)
        return pd.DataFrame(
            {
                "model": self.model,
                "layer": np.repeat([h.layer for h in self.heads], length),
                "head": np.repeat([h.head for h in self.heads], length),
                "key": np.tile(np.arange(length), len(self.heads)),
                "token": self.tokens * len(self.heads),
                "attention": self.profile.reshape(-1),
            }
        )

    def plot(self, head: Head | str | None = None, **options: Any) -> Any:
        """Draw one head's whole map (by default the first head's); returns the matplotlib figure."""
        from headwise.charts.attention import attention_chart
        from headwise.charts.static import figure

        index = 0 if head is None else self.index(head)
        if self.maps is None:
            raise HeadwiseError(
                "full attention maps were not kept; ask for them: hw.attention(..., maps=True)"
            )
        title = f"Attention of {self.heads[index]}, {self.model}"
        return figure(attention_chart(self.maps[index], self.tokens, **{"title": title, **options}))


class _Options(TypedDict, total=False):
    queries: Sequence[int]
    keys: Sequence[int]
    maps: bool
    batch_tokens: int | None


@overload
def attention(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
    model: Model, prompts: str, heads: Heads = ..., **options: Unpack[_Options]
) -> Attention: ...
@overload
def attention(
    model: Model, prompts: Sequence[Prompt] | TaskLike, heads: Heads = ..., **options: Unpack[_Options]
) -> list[Attention]: ...
def attention(
    model: Model,
    prompts: str | Sequence[Prompt] | TaskLike,
    heads: Heads = None,
    *,
    queries: Sequence[int] = (-1,),
    keys: Sequence[int] = (0,),
    maps: bool = False,
    batch_tokens: int | None = None,
) -> Attention | list[Attention]:
    """Attention of the chosen heads on one prompt, or on each of several.

    prompts: a text, a list of texts (or of lists of token ids) of any lengths, or a task, list or DataFrame of
        examples; all but one text give a list.
    heads: "L12H3", a Head, or several of them; by default every head.
    queries, keys: positions whose rows and columns are kept, counted from the end where negative; by default
        the last token's row and the first token's column.
    maps: also keep every head's whole map, T × T numbers each.
    batch_tokens: most tokens in one forward pass (default: what suits the device).

    A hook around the call (`model.hook`) acts here too. Profiles as in arXiv 2510.01032.

    >>> result = attention(model, "The cat sat on the mat", "L0H3")   # doctest: +SKIP
    >>> result.rows.shape, result.profile.shape                       # doctest: +SKIP
    ((1, 1, 6), (1, 6))
    """
    from headwise.tasks.opening import prompts_of

    chosen = model.heads() if heads is None else at_least_one(model.query_heads(heads))
    ids = [_ids(model, prompt, number) for number, prompt in enumerate(prompts_of(prompts, model))]
    if maps:
        _check_maps(ids, len(chosen))
    results = [_empty(model, of_prompt, chosen, queries, keys, maps) for of_prompt in ids]
    watched = watchable(model.hooks)
    at_once = (batch_tokens or model.batch_tokens) if watched else 1  # reported maps are large: one by one
    for numbers in batches([len(of_prompt) for of_prompt in ids], at_once):
        take = partial(_take, [results[n] for n in numbers])
        attention_blocks(model, watched, pad_right([ids[n] for n in numbers]), chosen, take)
    for result in results:
        later = np.arange(len(result.ids) - 1, -1, -1)  # how many queries come after each key
        result.profile[:] /= np.maximum(later, 1)
        result.profile[:, [0, -1]] = np.nan
    return results[0] if isinstance(prompts, str) else results


# ---- what was asked for -----------------------------------------------------------------------------------


def _ids(model: Model, prompt: Prompt, number: int) -> list[int]:
    try:
        ids = model.tokens(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
    except (TypeError, ValueError):
        raise HeadwiseError(
            f"prompt {number + 1} is {quoted(prompt)}; give texts, or a list of lists of token ids"
        ) from None
    if model.has_text and not isinstance(prompt, str):
        ids = model.text.fitted([ids])[0]
    if not ids:
        raise HeadwiseError(f"prompt {number + 1} has no tokens; attention needs at least one")
    model.check_token_ids(ids, number)
    return ids


def _check_maps(ids: list[list[int]], heads: int) -> None:
    numbers = heads * sum(len(of_prompt) ** 2 for of_prompt in ids)
    if numbers > LARGEST_MAPS:
        raise HeadwiseError(
            f"the maps of {heads} heads over these prompts (up to {max(map(len, ids))} tokens) take "
            f"{numbers / 2**28:.0f} GB; ask for fewer heads or shorter prompts, or for rows, columns and profiles "
            "(maps=False)"
        )


# ---- what is kept of a block --------------------------------------------------------------------------------


def _empty(
    model: Model, ids: list[int], heads: list[Head], queries: Sequence[int], keys: Sequence[int], maps: bool
) -> Attention:
    """The result for one prompt before any block: all zeros. `profile` is a sum over queries until all are there."""
    text, length, count = model._text, len(ids), len(heads)
    rows = [_position(p, length, "query") for p in queries]
    columns = [_position(p, length, "key") for p in keys]
    return Attention(
        model=model.name,
        heads=heads,
        tokens=[str(token) for token in ids] if text is None else text.readable(ids),
        ids=ids,
        profile=np.zeros((count, length)),
        queries=rows,
        rows=np.zeros((count, len(rows), length), dtype=np.float32),
        keys=columns,
        columns=np.zeros((count, length, len(columns)), dtype=np.float32),
        maps=np.zeros((count, length, length), dtype=np.float32) if maps else None,
    )


def _position(position: int, length: int, kind: str) -> int:
    if not -length <= position < length:
        raise HeadwiseError(
            f"{kind} {position} is outside a prompt of {length} tokens; positions run from 0 to {length - 1}, or from "
            f"-{length} to -1 counted from the end"
        )
    return position % length


def _take(results: list[Attention], heads: list[int], start: int, weights: Tensor) -> None:
    """Copy rows, columns and maps out of a block `[B, h, t, s]`, then add it to the sums behind the profiles."""
    for result, of_prompt in zip(results, weights, strict=True):
        length = len(result.ids)
        block = of_prompt[:, : max(0, length - start), :length]  # without padding
        stop, seen = start + block.shape[1], block.shape[2]
        inside = {slot: query - start for slot, query in enumerate(result.queries) if start <= query < stop}
        rows = _numpy(block[:, list(inside.values())])  # one copy from the device for all rows
        for i, slot in enumerate(inside):
            result.rows[heads, slot, :seen] = rows[:, i]
        for slot, key in enumerate(result.keys):
            if key < seen:
                result.columns[heads, start:stop, slot] = _numpy(block[:, :, key])
        if result.maps is not None:
            for head, of_head in zip(heads, block, strict=True):
                result.maps[head, start:stop, :seen] = _numpy(of_head)
    position = torch.arange(start, start + weights.shape[2], device=weights.device)
    lengths = torch.tensor([len(result.ids) for result in results], device=weights.device)
    weights *= (position[None, :] < lengths[:, None])[:, None, :, None]  # queries of the padding
    weights.diagonal(start, -2, -1).zero_()  # a profile counts later queries alone
    for result, summed in zip(results, weights.sum(-2), strict=True):
        seen = min(summed.shape[1], len(result.ids))
        result.profile[heads, :seen] += _numpy(summed[:, :seen])


def _numpy(tensor: Tensor) -> Any:
    return widened(tensor).cpu().numpy()
