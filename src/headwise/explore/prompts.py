"""What is kept of a prompt between two clicks: its token ids, and what the full model makes of it.

T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.explore.asked import MOST_TOKENS, OfPrompt
from headwise.explore.kept import Kept
from headwise.model.generation.prompts import encode_prompts
from headwise.model.model import Model
from headwise.model.tokens.text import common_prefix

if TYPE_CHECKING:
    from headwise.cards.tokens import TokenReader

MOST_PATCHED = 2048
"""Longest prompt that can be patched: the outputs of all heads on the counterfactual are held."""
_KEPT = 4


@dataclass
class Prompt:
    """One prompt and the results that do not depend on the gates."""

    ids: list[int]
    full: Tensor | None = None
    """Log probabilities of the next token with all heads, `[vocabulary]`."""
    text: list[int] = field(default_factory=list)
    """The continuation with all heads, as far as it was computed."""
    ended: bool = False
    """Whether an end token follows `text`."""
    means: dict[int, Tensor] | None = None
    """Layer -> mean output of each head over the prompt, `[H, D]`."""
    donor: tuple[str, dict[int, Tensor], int] | None = None
    """Counterfactual, head outputs on it (layer -> `[1, T, H, D]`), and the first token that differs."""
    kept: Kept | None = None
    """The last pass over this prompt."""
    reader: TokenReader | None = None
    """What heads write at the last token, as tokens."""


class Prompts:
    """The last few prompts."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._kept: OrderedDict[tuple[str, bool], Prompt] = OrderedDict()

    def get(self, asked: OfPrompt, room: int = 0) -> Prompt:
        """The prompt of a request, encoded as `hw.generate` does; `room`: tokens that will be read after it."""
        key = (asked.prompt, asked.chat)
        kept = self._kept.pop(key, None)
        if kept is None:
            ids = self._encoded(asked.prompt, asked.chat, room)
            kept = Prompt(ids)
        elif room:
            self._encoded(asked.prompt, asked.chat, room)  # refuses what does not fit
        for other in self._kept.values():
            other.kept = None  # streams of one prompt are held at a time
        self._kept[key] = kept
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return kept

    def _encoded(self, text: str, chat: bool, room: int) -> list[int]:
        if not text:
            raise HeadwiseError("the prompt is empty; write at least one word")
        (ids,) = encode_prompts(self.model, [text], chat, room=room)
        if len(ids) > MOST_TOKENS:
            raise HeadwiseError(
                f"the prompt has {len(ids)} tokens; the explorer takes at most {MOST_TOKENS}. Shorten it, or use "
                "hw.generate and hw.attention"
            )
        return ids

    def means(self, prompt: Prompt) -> dict[int, Tensor]:
        """The mean output of each head over the tokens of the prompt, as `hw.generate` takes it."""
        if prompt.means is None:
            prompt.means = self.model.mean_outputs([prompt.ids])
        return prompt.means

    def donor(self, prompt: Prompt, asked: OfPrompt) -> tuple[dict[int, Tensor], int]:
        """The outputs of all heads on the counterfactual, and the first token in which the two differ."""
        if not asked.counterfactual:
            raise HeadwiseError("patching needs a counterfactual prompt; write one, or choose zero or mean")
        if prompt.donor is None or prompt.donor[0] != asked.counterfactual:
            for other in self._kept.values():
                other.donor = None  # one is held at a time
            ids = self._encoded(asked.counterfactual, asked.chat, 0)
            if len(ids) != len(prompt.ids):
                raise HeadwiseError(
                    f"the prompt has {len(prompt.ids)} tokens and the counterfactual {len(ids)}; they must have the "
                    "same length, because an output is replaced by the one at the same position"
                )
            if len(ids) > MOST_PATCHED:
                raise HeadwiseError(
                    f"the prompt has {len(ids)} tokens; patching in the explorer takes at most {MOST_PATCHED}. Choose "
                    "zero or mean, or use hw.patch"
                )
            with self.model.running():
                outputs = self.model.outputs(torch.tensor([ids]))
            prompt.donor = (asked.counterfactual, outputs, common_prefix(prompt.ids, ids))
        return prompt.donor[1:]
