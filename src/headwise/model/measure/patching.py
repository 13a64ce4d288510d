"""`hw.patch`: activation patching of chosen heads, at chosen positions, from one prompt into another.

One forward pass has three rows for every pair of prompts: the clean prompt, the clean prompt with patched heads, and
the corrupted prompt, whose head outputs are patched in.

E pairs of prompts, B rows of a batch, T tokens, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.display import cut_in_the_middle, html_table
from headwise.errors import HeadwiseError, quoted
from headwise.heads import Head, at_least_one
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import batches
from headwise.model.generation.prompts import encode_prompts
from headwise.model.measure.positions import in_prompt, parsed
from headwise.model.tokens.encode import pad_right
from headwise.settings import several

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass(frozen=True)
class Patched:
    """Next-token logits with and without patched heads. E pairs of prompts."""

    clean: np.ndarray = field(repr=False)  # E, vocabulary
    patched: np.ndarray = field(repr=False)  # E, vocabulary
    corrupted: np.ndarray = field(repr=False)  # E, vocabulary
    """Of the corrupted prompts, without patching."""
    heads: list[Head]
    positions: list[list[int]]
    """`[E]`: the positions that were patched, from 0."""
    prompts: list[str]
    """The prompts that were run with the patch, as texts."""
    model: Model = field(repr=False)
    restored: bool = False
    """Whether the corrupted prompts were run with outputs of the clean ones, and not the other way round."""

    @property
    def _plain(self) -> np.ndarray:
        """The same prompts without the patch `[E, vocabulary]`."""
        return self.corrupted if self.restored else self.clean

    def logit_diff(self, answer: str | Sequence[str], wrong: str | Sequence[str]) -> pd.DataFrame:
        """logit(answer) − logit(wrong) of each pair: clean, patched, corrupted.

        `effect` is positive where the heads help: clean − patched, and with `restore` patched − corrupted. `share` is
        the part of the way between clean and corrupted that the patch goes: 0 is no change, 1 is the value of the other
        prompt; NaN where these two are equal.
        answer, wrong: one text for all pairs, or one per pair; each must be one token, with its leading space.
        """
        right, other = (self._tokens(name, given) for name, given in (("answer", answer), ("wrong", wrong)))
        rows = np.arange(len(self.clean))
        columns = {
            name: (logits := getattr(self, name))[rows, right] - logits[rows, other]
            for name in ("clean", "patched", "corrupted")
        }
        way = columns["clean"] - columns["corrupted"]
        effect = columns["clean"] - columns["patched"]
        if self.restored:
            effect = columns["patched"] - columns["corrupted"]
        share = np.divide(effect, way, out=np.full(len(way), np.nan), where=way != 0)
        return pd.DataFrame({**columns, "effect": effect, "share": share})

    def table(self, k: int = 5) -> pd.DataFrame:
        """For each pair the k most likely next tokens with and without the patch, with both probabilities."""
        return pd.DataFrame(self._likely(k), columns=["pair", "token", "plain", "patched"])

    def _likely(self, k: int) -> list[tuple[int, str, float, float]]:
        rows, readable = [], self.model.text.readable_token
        clean, patched = (torch.from_numpy(x).softmax(-1).numpy() for x in (self._plain, self.patched))
        for pair, both in enumerate(zip(clean, patched, strict=True)):
            first = [token for probabilities in both for token in np.argsort(-probabilities)[:k].tolist()]
            rows += [(pair, readable(t), float(both[0][t]), float(both[1][t])) for t in dict.fromkeys(first)]
        return rows

    def _tokens(self, name: str, given: str | Sequence[str]) -> np.ndarray:
        texts = several(given)
        texts = texts * len(self.clean) if isinstance(given, str) else texts
        if len(texts) != len(self.clean):
            raise HeadwiseError(
                f"{name} has {len(texts)} texts for {len(self.clean)} pairs of prompts; give one text, or one per pair"
            )
        tokens = []
        for text, prompt in zip(texts, self.prompts, strict=True):
            before, both = self.model.text.encode_whole([prompt, prompt + text])
            if both[:-1] != before:
                raise HeadwiseError(
                    f"{name} {quoted(text)} is not one token after its prompt; give an answer of one token, with its "
                    "leading space, or use hw.measure with a task, which takes longer answers"
                )
            tokens.append(both[-1])
        return np.array(tokens)

    def __repr__(self) -> str:
        heads, at = ", ".join(map(str, self.heads)), _spans(self.positions[0])
        likeliest = [int(logits[0].argmax()) for logits in (self._plain, self.patched)]
        before, after = map(self.model.text.readable_token, likeliest)
        prompt, more = (
            cut_in_the_middle(self.prompts[0], 60),
            f", {len(self.clean)} pairs" * (len(self.clean) > 1),
        )
        return (
            f"Patched({heads} at position {at} of {prompt!r}{more}: most likely next token {before!r} "
            f"without, {after!r} with the patch)"
        )

    def _repr_html_(self) -> str:
        rows = (
            (cut_in_the_middle(self.prompts[pair]), repr(token), f"{clean:.4f}", f"{patched:.4f}")
            for pair, token, clean, patched in self._likely(5)
            if pair < 5
        )
        title = f"Next-token probabilities with {', '.join(map(str, self.heads))} patched"
        return html_table(title, ["prompt", "token", "without", "with the patch"], rows)


def patch(
    model: Model,
    clean: str | Sequence[Any],
    corrupted: str | Sequence[Any],
    heads: Any,
    *,
    positions: str | int | Sequence[int] = "all",
    restore: bool = False,
) -> Patched:
    """Run the clean prompts with the outputs of some heads taken from the corrupted prompts (activation patching).

    clean, corrupted: a text each, or as many of both (texts or lists of token ids); the two of a pair have the same
        number of tokens.
    restore: run the corrupted prompts with outputs of the clean ones instead. Either way a positive effect means that
        the heads help.
    heads: such as ["L9H6"]; all of them are patched together.
    positions: `all`, `last`, or token positions from 0; negative ones count from the end of each prompt.

    The result has next-token logits with and without the patch, `.logit_diff(answer, wrong)` and `.table()`. For an
    average over a task with intervals: `hw.measure(model, task, ablate=heads, reference="patch")`.

    >>> hw.patch(model, clean, corrupted, ["L9H6"], positions=[-1]).logit_diff(" Mary", " John")   # doctest: +SKIP
    """
    chosen = at_least_one(model.query_heads(heads))
    pairs = _pairs(model, *((corrupted, clean) if restore else (clean, corrupted)))
    where = [_positions(positions, len(ids)) for ids, _ in pairs]
    logits = np.empty((3, len(pairs), model.vocabulary), dtype=np.float32)
    with torch.inference_mode(), model.running():
        for numbers in batches([3 * len(ids) for ids, _ in pairs], model.batch_tokens):
            some = [pairs[n] for n in numbers]
            ids = pad_right([a for a, _ in some] * 2 + [b for _, b in some]).to(model.device)
            last = torch.tensor([[len(a) - 1] for a, _ in some] * 3, device=model.device)
            mask = torch.zeros(len(some), ids.shape[1], dtype=torch.bool, device=model.device)
            for row, n in enumerate(numbers):
                mask[row, where[n]] = True
            out = model.run(Pass(ids=ids, scored=last, heads=_Patch(chosen, mask))).logits[:, 0]
            logits[:, numbers] = out.float().cpu().numpy().reshape(3, len(some), -1)
    texts = [model.text.tokenizer.decode(a, skip_special_tokens=True) for a, _ in pairs]
    given = _listed(corrupted if restore else clean)
    texts = [text if isinstance(text, str) else read for text, read in zip(given, texts, strict=True)]
    plain, patched, other = logits
    ends = (other, patched, plain) if restore else (plain, patched, other)
    return Patched(*ends, chosen, where, texts, model, restore)


class _Patch:
    """The hook: in rows E to 2E, the heads' outputs at the positions `mask[E, T]` become those of rows 2E to 3E."""

    def __init__(self, heads: Sequence[Head], mask: Tensor) -> None:
        self.mask = mask
        self.by_layer: dict[int, list[int]] = {}
        for head in heads:
            self.by_layer.setdefault(head.layer, []).append(head.head)

    def __call__(self, layer: int, z: Tensor) -> Tensor | None:
        if layer not in self.by_layer:
            return None
        clean, patched, corrupted = z.chunk(3)  # E, T, H, D each
        chosen = torch.zeros(z.shape[2], dtype=torch.bool, device=z.device)
        chosen[self.by_layer[layer]] = True
        mask = self.mask.to(z.device)[:, :, None, None] & chosen[None, None, :, None]
        return torch.cat([clean, torch.where(mask, corrupted, patched), corrupted])


def _listed(prompts: str | Sequence[Any]) -> list[Any]:
    """One text, or one list of token ids, is one prompt."""
    listed = several(prompts)
    return [listed] if listed and all(isinstance(item, int) for item in listed) else listed


def _pairs(model: Model, clean: Any, corrupted: Any) -> list[tuple[list[int], list[int]]]:
    sides = [_listed(clean), _listed(corrupted)]
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        raise HeadwiseError(
            f"{len(sides[0])} clean and {len(sides[1])} corrupted prompts are given; every clean prompt needs one "
            "corrupted prompt"
        )
    pairs = list(zip(*(encode_prompts(model, side, chat=False) for side in sides), strict=True))
    for number, (a, b) in enumerate(pairs):
        if len(a) != len(b):
            raise HeadwiseError(
                f"pair {number + 1}: the clean prompt has {len(a)} tokens and the corrupted one {len(b)}; they must be "
                "equal, because positions are patched one by one (model.tokens(text) shows the token ids)"
            )
    return pairs


def _positions(given: str | int | Sequence[int], length: int) -> list[int]:
    """Positions from 0 in a prompt of this length."""
    chosen = {"all": range(length), "last": (-1,)}.get(given, given) if isinstance(given, str) else given
    numbers = [position for position in parsed(chosen) if isinstance(position, int)]
    if not numbers:
        raise HeadwiseError(
            f"positions is {quoted(given)}; give 'all', 'last' or token positions such as [-1, 4]"
        )
    return in_prompt(numbers, length, "a prompt")


def _spans(numbers: Sequence[int]) -> str:
    """0–5 for neighbours, else the numbers.

    >>> _spans([0, 1, 2]), _spans([1, 4])
    ('0–2', '1, 4')
    """
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
