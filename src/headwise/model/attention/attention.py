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
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.attention.blocks import attention_blocks
from headwise.model.attention.reported import watchable
from headwise.model.forward.schedule import batches
from headwise.model.tokens.encode import pad_right

if TYPE_CHECKING:
    import pandas as pd

    from headwise.model.model import Model

Prompt = str | Sequence[int]
"""A text, or its token numbers."""

LARGEST_MAPS = 2 * 2**30
"""Most numbers that whole maps may take up, over all prompts: 8 GB in float32."""


@dataclass(frozen=True)
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

    def index(self, head: Head | str) -> int:
        """The place of a head on the first axis of every array."""
        wanted = Head.parse(head) if isinstance(head, str) else Head(*head)
        if wanted not in self.heads:
            raise HeadwiseError(f"{wanted} was not asked for; here are {', '.join(map(str, self.heads))}")
        return self.heads.index(wanted)

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

        place = 0 if head is None else self.index(head)
        if self.maps is None:
            raise HeadwiseError("whole maps were not kept; ask for them: hw.attention(..., maps=True)")
        title = f"Attention of {self.heads[place]}, {self.model}"
        return figure(attention_chart(self.maps[place], self.tokens, **{"title": title, **options}))


@overload
def attention(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
    model: Model,
    prompts: str,
    heads: Head | str | Iterable[Head | str] | None = ...,
    *,
    queries: Sequence[int] = ...,
    keys: Sequence[int] = ...,
    maps: bool = ...,
    batch_tokens: int | None = ...,
) -> Attention: ...
@overload
def attention(
    model: Model,
    prompts: Sequence[Prompt],
    heads: Head | str | Iterable[Head | str] | None = ...,
    *,
    queries: Sequence[int] = ...,
    keys: Sequence[int] = ...,
    maps: bool = ...,
    batch_tokens: int | None = ...,
) -> list[Attention]: ...
def attention(
    model: Model,
    prompts: str | Sequence[Prompt],
    heads: Head | str | Iterable[Head | str] | None = None,
    *,
    queries: Sequence[int] = (-1,),
    keys: Sequence[int] = (0,),
    maps: bool = False,
    batch_tokens: int | None = None,
) -> Attention | list[Attention]:
    """Attention of the chosen heads on one prompt, or on each of several.

    prompts: a text, or a list of texts (or of lists of token numbers) of any lengths; a list gives a list.
    heads: "L12H3", a Head, or several of them; by default every head.
    queries, keys: positions whose rows and columns are kept, counted from the end where negative; by default
        the last token's row and the first token's column.
    maps: also keep every head's whole map, T × T numbers each.
    batch_tokens: most tokens in one forward pass (default: what suits the device).

    Gates that act around the call (`model.hook`) act here too. Profiles as in arXiv 2510.01032.

    >>> found = attention(model, "The cat sat on the mat", "L0H3")     # doctest: +SKIP
    >>> found.rows.shape, found.profile.shape                         # doctest: +SKIP
    ((1, 1, 6), (1, 6))
    """
    chosen = _chosen(model, heads)
    several = [prompts] if isinstance(prompts, str) else list(prompts)
    ids = [_ids(model, prompt, number) for number, prompt in enumerate(several)]
    if maps:
        _check_maps(ids, len(chosen))
    results: list[Attention | None] = [None] * len(ids)
    watched = watchable(model.hooks)
    at_once = (batch_tokens or model.batch_tokens) if watched else 1  # reported maps are large: one by one
    for numbers in batches([len(one) for one in ids], at_once):
        wanted = [_Wanted(len(ids[n]), chosen, queries, keys, maps) for n in numbers]
        padded = pad_right([ids[n] for n in numbers])
        attention_blocks(model, watched, padded, chosen, partial(_reduce, wanted))
        for number, one in zip(numbers, wanted, strict=True):
            results[number] = one.result(model, ids[number])
    done = [result for result in results if result is not None]
    return done[0] if isinstance(prompts, str) else done


# ---- what was asked for -----------------------------------------------------------------------------------


def _chosen(model: Model, heads: Head | str | Iterable[Head | str] | None) -> list[Head]:
    if heads is None:
        return model.heads()
    if isinstance(heads, str | Head):
        heads = [heads]
    chosen = [Head.parse(h) if isinstance(h, str) else Head(*h) for h in heads]
    model.check_heads(chosen)
    if not chosen:
        raise HeadwiseError(
            "no heads were given; name at least one, such as 'L0H0', or leave heads out for all"
        )
    return list(dict.fromkeys(chosen))


def _ids(model: Model, prompt: Prompt, number: int) -> list[int]:
    if isinstance(prompt, int):
        raise HeadwiseError(
            "the prompts are a list of numbers; give a text, or a list of lists of token numbers"
        )
    ids = model.tokens(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
    if model.has_text and not isinstance(prompt, str):
        ids = model.text.fitted([ids])[0]
    if not ids:
        raise HeadwiseError(f"prompt {number + 1} has no tokens; attention needs at least one")
    embedding = getattr(model.hf.get_input_embeddings(), "weight", None)  # type: ignore[operator]
    known = len(embedding) if isinstance(embedding, Tensor) else model.vocabulary
    strange = [token for token in ids if not 0 <= token < known]
    if strange:
        raise HeadwiseError(
            f"prompt {number + 1} holds the token number {strange[0]}; {model.name}'s run from 0 to {known - 1}"
        )
    return ids


def _check_maps(ids: list[list[int]], heads: int) -> None:
    numbers = heads * sum(len(one) ** 2 for one in ids)
    if numbers > LARGEST_MAPS:
        raise HeadwiseError(
            f"the maps of {heads} heads over these prompts (up to {max(map(len, ids))} tokens) take "
            f"{numbers / 2**28:.0f} GB; ask for fewer heads or shorter prompts, or for rows, columns and profiles "
            "(maps=False)"
        )


# ---- what is kept of a block --------------------------------------------------------------------------------


class _Wanted:
    """What one prompt's heads are asked for, filled block by block. The arrays of `Attention`, and sums."""

    def __init__(
        self, length: int, heads: list[Head], queries: Sequence[int], keys: Sequence[int], maps: bool
    ) -> None:
        self.length, self.heads = length, heads
        self.queries = [_position(p, length, "query") for p in queries]
        self.keys = [_position(p, length, "key") for p in keys]
        self.sums = np.zeros((len(heads), length))
        self.rows = np.zeros((len(heads), len(self.queries), length), dtype=np.float32)
        self.columns = np.zeros((len(heads), length, len(self.keys)), dtype=np.float32)
        self.maps = np.zeros((len(heads), length, length), dtype=np.float32) if maps else None

    def take(self, places: list[int], start: int, weights: Tensor) -> None:
        """Rows, columns and maps from a block `[h, t, s]` of some heads' weights."""
        count = min(weights.shape[1], self.length - start)
        reached = min(weights.shape[2], self.length)
        for slot, query in enumerate(self.queries):
            if start <= query < start + count:
                self.rows[places, slot, :reached] = _numpy(weights[:, query - start, :reached])
        stop = start + max(count, 0)
        for slot, key in enumerate(self.keys):
            if key < reached:
                self.columns[places, start:stop, slot] = _numpy(weights[:, : stop - start, key])
        if self.maps is not None and count > 0:
            for place, of_head in zip(places, weights, strict=True):
                self.maps[place, start:stop, :reached] = _numpy(of_head[:count, :reached])

    def result(self, model: Model, ids: list[int]) -> Attention:
        later = np.arange(self.length - 1, -1, -1)  # how many queries come after each key
        profile = self.sums / np.maximum(later, 1)
        profile[:, [0, -1]] = np.nan
        text = model._text
        return Attention(
            model.name,
            self.heads,
            [text.decode([token]) if text is not None else str(token) for token in ids],
            ids,
            profile,
            self.queries,
            self.rows,
            self.keys,
            self.columns,
            self.maps,
        )


def _position(position: int, length: int, kind: str) -> int:
    if not -length <= position < length:
        raise HeadwiseError(
            f"{kind} {position} is outside a prompt of {length} tokens; positions run from 0 to {length - 1}, or from "
            f"-{length} to -1 counted from the end"
        )
    return position % length


def _reduce(wanted: list[_Wanted], places: list[int], start: int, weights: Tensor) -> None:
    """Hand a block `[B, h, t, s]` to each row's collection, then add it to the sums behind the profiles."""
    for one, of_row in zip(wanted, weights, strict=True):
        one.take(places, start, of_row)
    query = torch.arange(start, start + weights.shape[2], device=weights.device)
    lengths = torch.tensor([one.length for one in wanted], device=weights.device)
    weights *= (query[None, :] < lengths[:, None])[:, None, :, None]  # queries of the padding
    weights.diagonal(start, -2, -1).zero_()  # a profile counts later queries alone
    for one, summed in zip(wanted, weights.sum(-2), strict=True):
        reached = min(summed.shape[1], one.length)
        one.sums[places, :reached] += _numpy(summed[:, :reached])


def _numpy(tensor: Tensor) -> Any:
    return tensor.float().cpu().numpy() if tensor.dtype != torch.float64 else tensor.cpu().numpy()
