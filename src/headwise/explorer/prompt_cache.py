"""What the next click on a prompt needs again: its token ids, what the full model makes of it, and its last pass.

Of prompts of up to `LONGEST` tokens, the residual stream after every block and the keys and values of every layer are
held, so that a changed gate costs only the blocks from its layer on. Longer prompts are read in pieces.

T tokens, W width of the stream, L layers, H heads, D head size.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.explorer.requests import MOST_TOKENS, OfPrompt
from headwise.model.forward.decode import Batch
from headwise.model.generation.prompts import encode_prompts
from headwise.model.model import Model
from headwise.model.tokens.text import common_prefix

if TYPE_CHECKING:
    from headwise.cards.tokens import TokenReader

LONGEST = 2048
"""Longest prompt of which streams are held, in tokens."""
PIECE = 1024
"""Tokens of a longer prompt that are read at once."""
MOST_PATCHED = 2048
"""Longest prompt that can be patched: the outputs of all heads on the counterfactual are held."""
_PROMPTS = 4
"""Prompts that are held."""


@dataclass(frozen=True)
class LastPass:
    """What the blocks computed in one pass over a prompt."""

    gates: np.ndarray  # L, H
    replaced_by: str
    """What replaced the heads: the ablation type, and of a patch the counterfactual."""
    streams: dict[int, Tensor]
    """Block -> the residual stream after it, `[1, T, W]`."""
    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of every layer."""

    @classmethod
    def of(
        cls, batch: Batch, streams: dict[int, Tensor], gates: np.ndarray, replaced_by: str
    ) -> LastPass | None:
        """The first pass of a batch; None where a block or the cache does not allow to hold it."""
        layers = batch.cached_layers()
        if layers is None or len(layers) != len(gates) or len(streams) != len(gates):
            return None
        return cls(gates, replaced_by, streams, layers)

    def unchanged_blocks(self, gates: np.ndarray, replaced_by: str) -> int:
        """How many first blocks compute the same under these gates."""
        differs = (self.gates != gates).any(1)
        if replaced_by != self.replaced_by:
            differs |= (gates != 1).any(1)
        changed = np.flatnonzero(differs)
        return int(changed[0]) if len(changed) else len(gates)


def can_skip_blocks(model: Model, tokens: int) -> bool:
    """Whether blocks may be skipped: they exchange nothing but the stream, and block k is layer k of the cache."""
    sites, blocks = model.hooks.sites, model.hooks.blocks
    plain = [(site.layer, site.block, site.calls) for site in sites] == [
        (k, k, 1) for k in range(len(blocks))
    ]
    return tokens <= LONGEST and plain and model.capabilities.share_rows and model.capabilities.decoding.cache


def piece_of(model: Model, tokens: int) -> int | None:
    """How many tokens of a prompt are read at once; None for all. Long prompts are read in pieces, to save memory."""
    # `prefix`: several tokens may be read after a cache.
    if tokens <= LONGEST or not model.capabilities.decoding.prefix:
        return None
    set_malloc_threshold()
    return PIECE


@functools.cache
def set_malloc_threshold() -> bool:
    """From now on, blocks of 1 MB and more go back to the system when freed; False where malloc is not glibc's.

    glibc keeps freed blocks of up to 32 MB for later use. A KV cache that grows piece by piece leaves holes that larger
    blocks do not fit into: reading 8,192 tokens then takes twice the memory that is in use. Tensors of short prompts
    are smaller than 1 MB, so their speed does not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    mmap_threshold = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
    return mallopt is not None and bool(mallopt(mmap_threshold, 1 << 20))


@dataclass
class Prompt:
    """One prompt and the results that do not depend on the gates."""

    ids: list[int]
    full: Tensor | None = None
    """Log probabilities of the next token with all heads, `[vocabulary]`."""
    text: list[dict[str, Any]] = field(default_factory=list)
    """The continuation with all heads, as far as it was computed: `id` and `text` of each token."""
    ended: bool = False
    """Whether an end token follows `text`."""
    means: dict[int, Tensor] | None = None
    """Layer -> mean output of each head over the prompt, `[H, D]`."""
    donor: tuple[str, dict[int, Tensor], int] | None = None
    """Counterfactual, head outputs on it (layer -> `[1, T, H, D]`), and the first token that differs."""
    last_pass: LastPass | None = None
    reader: TokenReader | None = None
    """What heads write at the last token, as tokens."""


class PromptCache:
    """The last few prompts."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._prompts: OrderedDict[tuple[str, bool], Prompt] = OrderedDict()

    def get(self, request: OfPrompt, room: int = 0) -> Prompt:
        """The prompt of a request, encoded as `hw.generate` does; `room`: tokens that will be read after it."""
        key = (request.prompt, request.chat)
        prompt = self._prompts.pop(key, None)
        if prompt is None or room:
            ids = self._encoded(*key, room)  # refuses what does not fit
            prompt = prompt or Prompt(ids)
        for other in self._prompts.values():
            other.last_pass = None  # streams of one prompt are held at a time
        self._prompts[key] = prompt
        while len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
        return prompt

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

    def donor(self, prompt: Prompt, request: OfPrompt) -> tuple[dict[int, Tensor], int]:
        """The outputs of all heads on the counterfactual, and the first token in which the two differ."""
        if not request.counterfactual:
            raise HeadwiseError("patching needs a counterfactual prompt; write one, or choose zero or mean")
        if prompt.donor is None or prompt.donor[0] != request.counterfactual:
            for other in self._prompts.values():
                other.donor = None  # one is held at a time
            ids = self._encoded(request.counterfactual, request.chat, 0)
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
            prompt.donor = (request.counterfactual, outputs, common_prefix(prompt.ids, ids))
        return prompt.donor[1:]
