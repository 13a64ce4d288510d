"""A loaded model: its heads, how it is run, and its name and fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from headwise.display import html_facts
from headwise.errors import HeadwiseError, unknown, warn_once
from headwise.heads import HEADS, KV_HEADS, Head, Layout, Order, chosen_gates, head_list
from headwise.heads.heads_file import named_heads, save_pattern
from headwise.model.forward.gate import by_token, same_gates
from headwise.model.forward.run import Output, Pass, run
from headwise.model.forward.schedule import batches, example_too_large, in_halves
from headwise.model.origin import Origin, replica
from headwise.model.sites.attention_function import HeadHook
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import frozen
from headwise.model.sites.probe import context_length, embedded_rows, entry_device, weight_dtype, weights_hash
from headwise.model.sparse import adapter
from headwise.model.tokens.encode import pad_right
from headwise.model.tokens.text import Text
from headwise.model.verify.capabilities import Capabilities
from headwise.model.verify.proof import Proof
from headwise.names import MLP, component_kind
from headwise.settings import several

FEW_FOR_MEAN = 16
"""A mean output over fewer examples is announced."""
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Model:
    """A causal language model whose heads can be gated, with the result of its verification."""

    hf: nn.Module
    _text: Text | None
    name: str
    hooks: HeadHooks
    proof: Proof
    capabilities: Capabilities
    batch_tokens: int
    compile: bool = False
    edge_gates: adapter.EdgeGates | None = None
    """The edge gates of a sparse model (`headwise sparsify`) and how they were trained."""
    origin: Origin | None = None
    """How another process loads the same model; a live model has none."""
    memory: dict[Hashable, Any] | None = None
    """What `once` has computed, while a study runs and nobody changes the model (`Workbench.remembering`)."""

    def __post_init__(self) -> None:
        if self._text is not None:
            self._text.vocabulary, self._text.longest = self.embedded_tokens, context_length(self.hf)

    step_key = property(lambda self: (self.name, self.fingerprint, self.dtype_name))  # results carry the name

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the origin without the weights: every process loads those for itself."""
        if self.origin is None:
            raise HeadwiseError(
                f"{self.name} is a live model (or was given a tokenizer of its own), and weights are not sent to other "
                "processes; save model and tokenizer with save_pretrained and give the folder, which every worker must "
                "see"
            )
        named = {**self.origin.options, "name": self.name, "dtype": self.dtype_name}
        return replica, (replace(self.origin, options=named), self.fingerprint)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gives, which must not be changed; under the same key only once while there is a memory."""
        if self.memory is None:
            return compute()
        if key not in self.memory:
            self.memory[key] = compute()
        result: T = self.memory[key]
        return result

    def __repr__(self) -> str:
        layers, heads = self.shape
        return f"Model({self.name!r}, {layers} layers × {heads} heads, {self.dtype}, {self.device})"

    def _repr_html_(self) -> str:
        """In a notebook, what it is and how its heads are accessed."""
        parameters = sum(p.numel() for p in self.hf.parameters())
        facts = {
            "class": type(self.hf).__name__,
            "heads": f"{len(self.heads())} in {self.shape[0]} layers of up to {self.shape[1]}",
            "parameters": f"{parameters / 1e6:,.1f} million, {self.dtype_name}",
            "device": str(self.device),
            "heads accessed by": self.hooks.mechanism,
        }
        return html_facts(f"Model {self.name}", facts)

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
        """Token ids of a text as the model reads it."""
        return self.text.encode(text)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads), the shape of gates and scores."""
        return self.hooks.shape

    @property
    def exists(self) -> np.ndarray:
        """`[L, H]`: False for layers without attention, and beyond the number of heads of a layer."""
        return self.hooks.exists

    def layout(self, components: Iterable[str] = HEADS) -> Layout:
        """Which cells of gates and scores are components of these kinds: heads, mlps, input; or kv_heads."""
        kinds = several(components)
        return Layout.of(self.exists, kinds, self.capabilities.groups if "kv_heads" in kinds else None)

    def modules(self, components: Iterable[Head]) -> dict[Head, nn.Module]:
        """The module of each MLP, and of the embeddings, among these components."""
        able = self.capabilities
        return {c: able.mlps[c.layer] if c.head == MLP else able.embeddings for c in components if c.head < 0}

    def heads(self) -> list[Head]:
        """Every head, layer by layer."""
        return [Head(int(layer), int(head)) for layer, head in np.argwhere(self.exists)]

    def query_heads(self, heads: Any) -> Order:
        """These heads of the model, with every query head of its group in the place of a key/value head (`L12KV1`)."""
        found: Order = []
        for head in head_list(heads):
            if component_kind(head.head) == "kv_head":
                self.layout(KV_HEADS).check([head], self.name)
                members = self.exists[head.layer] & (self.capabilities.groups[head.layer] == head.cell[1])
                found += [Head(head.layer, int(member)) for member in np.flatnonzero(members)]
            else:
                found.append(head)
        self.check_heads(found)
        return found

    def check_heads(self, heads: Iterable[Head]) -> None:
        """Raise a `HeadwiseError` for what is not a head of this model."""
        self.layout().check(heads, self.name)

    def check_token_ids(self, ids: Iterable[int], prompt: int) -> None:
        """Raise a `HeadwiseError` for an id that the model has no embedding for; `prompt`: its number, from 0."""
        count = self.embedded_tokens or self.vocabulary
        for token in ids:
            if not 0 <= token < count:
                raise HeadwiseError(
                    f"prompt {prompt + 1} has the token id {token}; those of {self.name} are 0 to {count - 1}"
                )

    @property
    def device(self) -> torch.device:
        return entry_device(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return weight_dtype(self.hf)

    @property
    def dtype_name(self) -> str:
        """`float32`, `bfloat16`, …"""
        return str(self.dtype).removeprefix("torch.")

    @property
    def gate_dtype(self) -> torch.dtype:
        """At least float32, whatever the weights are in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def vocabulary(self) -> int:
        """Number of tokens that have a logit."""
        rows = embedded_rows(self.hf.get_output_embeddings())  # type: ignore[operator]
        return rows or int(self.hf.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]

    @property
    def embedded_tokens(self) -> int | None:
        """Number of tokens that have an input embedding; None where the model has no plain embedding table."""
        return embedded_rows(self.hf.get_input_embeddings())  # type: ignore[operator]

    def gates(self, gates: Any = None, *, ablate: Any = None, keep: Any = None) -> np.ndarray:
        """Gates `[L, H]` or `[V, L, H]` for this model: an array, or heads to ablate, or the only heads to keep.

        A key/value head (`L3KV1`) stands for all query heads of its group.

        >>> model.gates(ablate=["L3H2", "L5H0"])                              # doctest: +SKIP
        """
        ablate, keep = (None if heads is None else self.query_heads(heads) for heads in (ablate, keep))
        chosen = chosen_gates(self.shape, gates, ablate, keep)
        if chosen.ndim not in (2, 3) or chosen.shape[-2:] != self.shape or not len(chosen):
            sizes = f"{self.shape[0]}, {self.shape[1]}"
            raise HeadwiseError(
                f"gates of shape {chosen.shape} do not fit {self.name}: expected [{sizes}] or [variants, {sizes}]"
            )
        return np.where(self.exists, chosen, 1.0)

    def gated(
        self,
        gates: Any = None,
        *,
        ablate: Any = None,
        keep: Any = None,
        reference: str | None = None,
        reference_prompts: str | Sequence[str] | None = None,
    ) -> AbstractContextManager[None]:
        """While this holds, every forward pass of `model.hf` has these gates: your own code and `model.hf.generate`.

        gates: one set `[L, H]`; or name heads to `ablate`, or the only heads to `keep`.
        reference: `mean`, the head's mean output over all tokens of `reference_prompts`; `zero` without these. The
            references that are taken from another prompt (`patch`, `resample`) need to know which prompt belongs to
            which row: use `hw.patch`, or `hw.measure` with examples that have counterfactuals.

        >>> with model.gated(ablate=["L3H2"]):                                # doctest: +SKIP
        ...     model.hf.generate(**inputs)
        """
        chosen = self.gates(gates, ablate=ablate, keep=keep)
        if chosen.ndim != 2:
            raise HeadwiseError(
                f"model.gated takes one set of gates [{self.shape[0]}, {self.shape[1]}], not {chosen.shape}; to run "
                "many at once use hw.measure or hw.generate"
            )
        hook = same_gates(chosen)
        reference = reference or ("zero" if reference_prompts is None else "mean")
        if reference == "mean":
            if reference_prompts is None:
                raise HeadwiseError(
                    "the reference 'mean' needs texts to average over; give reference_prompts=['…', …]"
                )
            hook.reference = self.mean_outputs(self.text.encode_whole(several(reference_prompts)))
        elif reference in ("patch", "resample", "position_mean"):
            raise HeadwiseError(
                f"model.gated cannot use the reference {reference!r}: it does not know which prompt belongs to which "
                "row of your forward pass; use 'zero' or 'mean' here, or hw.patch or hw.measure"
            )
        elif reference != "zero":
            raise unknown("reference of model.gated", reference, ("zero", "mean"))
        return self.hook(hook)

    def hook(self, hook: HeadHook) -> AbstractContextManager[None]:
        """While this holds, `hook(layer, z)` returns the new z `[B, T, H, D]` of each layer in every forward pass.

        z is the output of every head of the layer before the output projection: B rows of the batch, T tokens, H heads,
        D numbers per head. A hook that only reads returns z or None. In `generate` with a KV cache, T is 1 after the
        first pass. One hook can be active at a time.

        >>> with model.hook(lambda layer, z: z * 0 if layer == 3 else z):     # doctest: +SKIP
        ...     model.hf(input_ids=ids)
        """
        return self.hooks.hook(hook)

    def streaming(
        self, heads: Any, k: int | None = None, *, sink: int | None = None, window: int | None = None
    ) -> AbstractContextManager[Any]:
        """While this holds, only `heads` see the whole context; gives the KV cache, which stores no more than that.

        heads: the query heads that need to see far, such as ["L12H3"], of which the key/value head then keeps
            everything, or key/value heads (`L12KV1`); scores or a run, of which the first `k` are meant; a heads file;
            a pattern of DuoAttention. All other key/value heads store the first `sink` tokens and the last `window`:
            by default 4 and 64, or what stands beside the pattern.

        >>> with model.streaming(["L12H3"]) as cache:                         # doctest: +SKIP
        ...     model.hf.generate(**inputs, past_key_values=cache)
        """
        # Imported here because it takes seconds, and commands that load no model should not wait for it.
        from headwise.model.generation.streaming import streaming_of

        return streaming_of(self, heads, k, sink, window).attached()

    def save_pattern(
        self, heads: Any, folder: str | Path, k: int | None = None, *, sink: int = 4, window: int = 64
    ) -> Path:
        """Write the heads that `streaming` takes, and its sizes, as a folder that DuoAttention and `streaming` read."""
        far = self.query_heads(named_heads(heads, k, self.name, self.heads()))
        self.check_heads(far)
        return save_pattern(far, self.capabilities.groups, folder, sink, window)

    def frozen(self) -> AbstractContextManager[None]:
        """While this holds, no weight needs a gradient."""
        return frozen(self.hf)

    def running(self) -> AbstractContextManager[None]:
        """While this holds, forward passes without gradients use the fastest kernels of this device."""
        compiled = self.capabilities.compiled if self.compile else None
        return compiled.acting() if compiled is not None and compiled.works else nullcontext()

    def run(self, request: Pass) -> Output:
        """Carry out one forward pass with the shortcuts that were verified for this model."""
        return run(self.hf, replace(request, narrow=self.capabilities.narrow), self.hooks)

    def run_whole(self, request: Pass) -> Output:
        """The same with every part of the last block computed at every position, for what looks into it."""
        return run(self.hf, request, self.hooks)

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Next-token logits `[B, P, vocabulary]` after the tokens at `positions[B, P]`, at least in float32."""
        return self.run(Pass(ids=ids, scored=positions)).logits

    def outputs(
        self,
        ids: Tensor,
        keep: Callable[[Tensor], Tensor] | None = None,
        components: Iterable[Head] = (),
    ) -> dict[Any, Tensor]:
        """Head outputs of a plain run: layer -> `[B, T, H, D]`, or what `keep` makes of them, layer by layer.

        components: MLPs and the input to note as well, each as one head: component -> `[B, T, 1, width]`.
        """
        seen: dict[Any, Tensor] = {}

        def note(of: int | Head, z: Tensor) -> None:
            if of in seen:
                raise HeadwiseError(
                    f"layer {of} of {self.name} runs several times per pass (shared weights), so its heads have no "
                    "single output; use the reference 'zero', or a causal method such as 'ablation'"
                )
            seen[of] = z.detach() if keep is None else keep(z.detach())

        def note_module(component: Head, output: Tensor) -> None:
            note(component, by_token(output, len(ids))[:, :, None])

        modules = {module: partial(note_module, one) for one, module in self.modules(components).items()}
        first = torch.zeros(len(ids), 1, dtype=torch.long)
        # The MLP of the last block reads what its attention gives at every position, so nothing may be narrowed.
        run = self.run_whole if modules else self.run
        with torch.no_grad():
            run(Pass(ids=ids.to(self.device), scored=first, heads=note, modules=modules))
        return seen

    def mean_outputs(
        self,
        prompts: Sequence[Sequence[int]],
        by_position: bool = False,
        batch_tokens: int | None = None,
        components: Sequence[Head] = (),
    ) -> dict[Any, Tensor]:
        """Each layer's mean head output over all tokens of the prompts: `[H, D]`, or `[T, H, D]` by position.

        components: MLPs and the input, whose means are returned as well, each as one head.
        """
        if not prompts or not all(len(ids) for ids in prompts):
            raise HeadwiseError(
                "a mean output needs reference prompts, none of them empty; give at least one with a token"
            )
        if len(prompts) < FEW_FOR_MEAN:
            over = f"{len(prompts)} example" + "s" * (len(prompts) > 1)
            warn_once(
                log,
                f"heads are replaced by their mean output over {over}; a steady mean needs {FEW_FOR_MEAN}",
            )
        lengths = torch.tensor([len(ids) for ids in prompts])
        sums: dict[Any, Tensor] = {}

        def add(numbers: Sequence[int]) -> None:
            ids = pad_right([prompts[n] for n in numbers])
            real = torch.arange(ids.shape[1])[None, :] < lengths[list(numbers), None]

            def total(z: Tensor) -> Tensor:
                kept = z.double() * real.to(z.device)[:, :, None, None]
                return kept.sum(0) if by_position else kept.sum((0, 1))

            for of, outputs in self.outputs(ids, total, components).items():
                sums[of] = sums[of] + outputs if of in sums else outputs

        for numbers in batches(lengths.tolist(), batch_tokens or self.batch_tokens):
            in_halves(numbers, add, example_too_large)
        count = len(prompts) if by_position else int(lengths.sum())
        return {of: (total / count).to(self.dtype) for of, total in sums.items()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and of every weight tensor (its shape, its sum, a sample of its values)."""
        return weights_hash(self.hf)
