"""A loaded model: its heads, how it is run, and what it is known by."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.forward.onednn import frozen
from headwise.model.forward.run import Output, Pass, run
from headwise.model.origin import Origin, replica
from headwise.model.sites.attention_function import Visitor
from headwise.model.sites.devices import entry_device, stored
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import weight_dtype
from headwise.model.sparse import adapter
from headwise.model.tokens.text import Text
from headwise.model.verify.capabilities import Capabilities
from headwise.model.verify.identities import Proof

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Model:
    """A causal language model whose heads can all be changed, with the proof of it."""

    def __init__(
        self,
        hf: nn.Module,
        text: Text | None,
        name: str,
        hooks: HeadHooks,
        proof: Proof,
        capabilities: Capabilities,
        batch_tokens: int,
        compile: bool = False,
    ) -> None:
        self.hf = hf
        self.name = name
        self.hooks = hooks
        self.proof = proof
        self.capabilities = capabilities
        self.batch_tokens = batch_tokens
        self.compile = compile
        self.edge_gates: adapter.EdgeGates | None = None
        """Where the model was loaded from what `headwise sparsify` makes: its gates and how they were trained."""
        self.origin: Origin | None = None
        """How another process loads the same model; a live model has none."""
        self._text = text
        if text is not None:
            text.vocabulary, text.longest = _embedded(hf), _positions(hf)

    def __reduce__(self) -> tuple[Any, ...]:
        """As pickle writes it: without its weights, which every process loads for itself."""
        if self.origin is None:
            raise HeadwiseError(
                f"{self.name} is a live model (or was given a tokenizer of its own), and weights are not sent to other "
                "processes; save model and tokenizer with save_pretrained and give the folder, which every worker must "
                "see"
            )
        named = {**self.origin.options, "name": self.name, "dtype": str(self.dtype).removeprefix("torch.")}
        return replica, (replace(self.origin, options=named), self.fingerprint)

    def __repr__(self) -> str:
        layers, heads = self.shape
        return f"Model({self.name!r}, {layers} layers × {heads} heads, {self.dtype}, {self.device})"

    @property
    def text(self) -> Text:
        if self._text is None:
            raise HeadwiseError(
                f"{self.name} was given without a tokenizer; pass it: hw.load(model, tokenizer=...)"
            )
        return self._text

    @property
    def has_text(self) -> bool:
        """Whether a tokenizer was given."""
        return self._text is not None

    def tokens(self, text: str) -> list[int]:
        """Token numbers of a text as the model reads it."""
        return self.text.encode(text)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads), the shape of gates and scores."""
        return self.hooks.shape

    @property
    def exists(self) -> np.ndarray:
        """`[L, H]`: False for layers without attention, and beyond a layer's own number of heads."""
        return self.hooks.exists

    def heads(self) -> list[Head]:
        """Every head, layer by layer."""
        return [Head(int(layer), int(head)) for layer, head in np.argwhere(self.exists)]

    def check_heads(self, heads: Iterable[Head]) -> None:
        """Refuse what is not a head of this model."""
        own = set(self.heads())
        for head in heads:
            if head not in own:
                layers, most = self.shape
                raise HeadwiseError(
                    f"{self.name} has no head {Head(*head)}; it has {len(own)} heads in {layers} layers of "
                    f"up to {most}, both counted from 0"
                )

    @property
    def device(self) -> torch.device:
        return entry_device(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return weight_dtype(self.hf)

    @property
    def gate_dtype(self) -> torch.dtype:
        """Gates are kept at least in float32, whatever the weights are in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def vocabulary(self) -> int:
        unembedding = self.hf.get_output_embeddings()  # type: ignore[operator]
        weight = getattr(unembedding, "weight", None)
        if isinstance(weight, Tensor):
            return int(weight.shape[0])
        return int(self.hf.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]

    @property
    def reach(self) -> HeadHooks:
        """The former name of `hooks`."""
        warnings.warn("model.reach is now model.hooks", DeprecationWarning, stacklevel=2)
        return self.hooks

    def visiting(self, visitor: Visitor) -> AbstractContextManager[None]:
        """While this holds, forward passes show each layer's head outputs to `visitor`."""
        return self.hooks.visiting(visitor)

    def frozen(self) -> AbstractContextManager[None]:
        """While this holds, no weight needs a gradient, and products are computed accordingly."""
        return frozen(self.hf)

    def running(self) -> AbstractContextManager[None]:
        """While this holds, forward passes without gradients are as fast as this device computes them."""
        if self.device.type == "cpu":
            return self.frozen()  # frozen weights are multiplied faster
        compiled = self.capabilities.compiled if self.compile else None
        return compiled.acting() if compiled is not None and compiled.works else nullcontext()

    def run(self, asked: Pass) -> Output:
        """Carry out one forward pass with the shortcuts that were proven for this model."""
        return run(self.hf, replace(asked, narrow=self.capabilities.narrow), self.hooks)

    def run_whole(self, asked: Pass) -> Output:
        """The same with every part of the last block computed at every position, for what looks into it."""
        return run(self.hf, asked, self.hooks)

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Next-token logits `[B, P, vocabulary]` after the tokens at `positions[B, P]`, at least in float32."""
        return self.run(Pass(ids=ids, scored=positions)).logits

    def outputs(self, ids: Tensor, keep: Callable[[Tensor], Tensor] | None = None) -> dict[int, Tensor]:
        """Head outputs of a plain run: layer -> `[B, T, H, D]`, or what `keep` makes of them, layer by layer."""
        seen: dict[int, Tensor] = {}

        def note(layer: int, z: Tensor) -> Tensor:
            if layer in seen:
                raise HeadwiseError(
                    f"layer {layer} of {self.name} runs several times per pass (shared weights), so its output has no "
                    "single reference; use the reference 'zero'"
                )
            seen[layer] = z.detach() if keep is None else keep(z.detach())
            return z

        first = torch.zeros(len(ids), 1, dtype=torch.long)
        with torch.no_grad():
            self.run(Pass(ids=ids.to(self.device), scored=first, heads=note))
        return seen

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and of every weight tensor (its shape, its sum, a sample of its values)."""
        digest = hashlib.sha256()
        config = self.hf.config.to_dict()  # type: ignore[operator, union-attr]
        for volatile in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
            config.pop(volatile, None)
        digest.update(repr(sorted(config.items(), key=lambda item: item[0])).encode())
        for name, parameter in self.hf.state_dict().items():
            digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
            flat = stored(self.hf, name, parameter).detach().flatten()
            if flat.is_meta or not len(flat):
                continue
            sample = flat[:: max(1, len(flat) // 256)].double().cpu().numpy()
            # Sums of whole numbers are exact, so every device and number of threads gives the same one.
            total = flat.view(_BITS[flat.element_size()]).sum(dtype=torch.int64).item()
            digest.update(sample.tobytes() + np.int64(total).tobytes())
        return digest.hexdigest()[:16]


def _embedded(hf: nn.Module) -> int | None:
    """How many token numbers have an embedding."""
    table = getattr(hf.get_input_embeddings(), "weight", None)  # type: ignore[operator]
    return int(table.shape[0]) if isinstance(table, Tensor) else None


def _positions(hf: nn.Module) -> int | None:
    """How many tokens the model was made for; None where its configuration says no number, or positions are relative.

    Rotary positions could be counted on beyond it, but the model has never met them.
    """
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0 or getattr(config, "alibi", False):
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one per kind of layer
    return max(most, *(_stretched(most, kind) for kind in kinds))


def _stretched(most: int, rope: dict[str, Any]) -> int:
    """To how many positions a scaling of the rotary ones reaches; some configurations count it in already."""
    factor, before = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not isinstance(factor, int | float):
        return most
    if not isinstance(before, int):
        before = most if rope.get("rope_type", rope.get("type")) in ("linear", "dynamic", "yarn") else 0
    return int(factor * before)
