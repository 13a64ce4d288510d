"""The model that is trained, and what it minimises: how much worse than the dense model, and what that is worth.

The goal for every next token is q = (1 − w)·dense model + w·the text's own token. C is the excess over the dense
model, Σ q·(log p_dense − log p): the divergence from it at w = 0, the difference of two cross-entropies at w = 1.
Text that the model itself sampled has w = 0: its own tokens are draws from the dense model's distribution, which
say less than the distribution and can be memorised.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, flag
from headwise.files import replacing
from headwise.model.model import Model
from headwise.model.sites.patch import attention_named
from headwise.model.sparse import edge_gates as sparse
from headwise.model.sparse.adapter import (
    WEIGHTS,
    EdgeGates,
    is_adapter,
    read_gates,
    weights_fingerprint,
    write_gates,
)
from headwise.model.sparse.edge_gates import EdgeCounts
from headwise.sparsify.settings import SparsifySettings


class Student:
    """A model with a low-rank adapter and, unless it is the control, edge gates; and an unchanged copy, the teacher."""

    def __init__(self, model: Model, base: str, settings: SparsifySettings, start: Path | None) -> None:
        self.hf, self.hooks, self.device = model.hf, model.hooks, model.device
        self.dense = settings.dense
        fingerprint = weights_fingerprint(self.hf)
        # A copy, and not the adapter switched off and on: that walks through all modules twice per update.
        self.teacher = copy.deepcopy(self.hf).requires_grad_(False)
        names = {module: name for name, module in self.hf.named_modules()}
        self._blocks = [names[block] for block in self.hooks.blocks]
        self._noise: list[Tensor] = []
        self.temperature = torch.ones((), device=self.device)
        bias = None if settings.dense else np.full(self.hooks.shape, float(settings.bias))
        self.gates = EdgeGates(base, fingerprint, bias, dict(settings))
        if bias is not None:
            sparse.install(self.hf, bias)
            sparse.prepare_training(self.hooks, self.temperature)
        self.peft = _with_adapter(self.hf, settings)
        if start is not None:
            self._start_from(start)
        named: list[tuple[str, torch.nn.Parameter]] = self.peft.named_parameters()
        self.parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
        self.peft.train(False)  # no dropout anywhere; gradients do not need the training mode

    def _start_from(self, folder: Path) -> None:
        """Load the adapter of an earlier training."""
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        if not is_adapter(folder):
            raise HeadwiseError(f"{folder} holds no adapter; give a folder that headwise sparsify made")
        if read_gates(folder).fingerprint != self.gates.fingerprint:
            raise HeadwiseError(f"the adapter in {folder} was not trained on {self.gates.base}")
        weights = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
        try:
            missing = set_peft_model_state_dict(self.peft, weights).missing_keys
        except RuntimeError as error:
            raise HeadwiseError(
                f"the adapter in {folder} has another rank; give the same {flag('rank')}"
            ) from error
        assert not any("lora" in name for name in missing)

    def compile(self, on: bool) -> None:
        """Use the compiled form of every decoder block of both models, or the plain one."""
        for model in (self.hf, self.teacher):
            for name in self._blocks:
                block = model.get_submodule(name)
                if on:
                    block.compile(dynamic=False)
                else:
                    block._compiled_call_impl = None
        if not self.dense:
            rows, length = self.gates.training["batch"], self.gates.training["length"]
            sites = self.hooks.sites if on else []
            self._noise = [torch.empty(rows, s.heads, length, length, device=self.device) for s in sites]
            sparse.prepare_training(self.hooks, self.temperature, self._noise or None)

    def draw_noise(self) -> None:
        """For the next pass, where compiled layers cannot draw it."""
        for numbers in self._noise:
            numbers.uniform_()

    def logits(self, ids: Tensor, model: torch.nn.Module | None = None) -> Tensor:
        """By default of the trained model, with the attention function that its configuration names now."""
        # bfloat16 on an accelerator, with a residual stream in float32; float32 on a CPU.
        on_gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            logits: Tensor = (self.hf if model is None else model)(input_ids=ids, use_cache=False).logits
            return logits

    @torch.no_grad()
    def dense_logits(self, ids: Tensor) -> Tensor:
        """Of the unchanged model."""
        return self.logits(ids, self.teacher)

    @torch.no_grad()
    def hard_logits(self, ids: Tensor, counts: EdgeCounts) -> Tensor:
        """Of the finished model, with hard gates; open edges are added to `counts`."""
        if self.dense:
            return self.logits(ids)
        watcher = counts.watcher(self.hooks.sites[0].layer)
        with attention_named(self.hf, lambda _: sparse.HARD), self.hooks.watching(watcher):
            return self.logits(ids)

    def save(self, folder: Path, outcome: dict[str, Any]) -> None:
        """Write the folder that `hw.load` opens, the adapter in bfloat16."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        weights = {
            name: tensor.detach().to(torch.bfloat16).cpu().contiguous()
            for name, tensor in get_peft_model_state_dict(self.peft).items()
        }
        config = copy.copy(self.peft.peft_config["default"])
        config.base_model_name_or_path, config.inference_mode = self.gates.base, True
        config.save_pretrained(folder)
        with replacing(folder / WEIGHTS) as partial:
            save_file(weights, partial, {"format": "pt"})
        training = {**self.gates.training, "outcome": outcome}
        write_gates(folder, dataclasses.replace(self.gates, training=training))


def _with_adapter(hf: torch.nn.Module, settings: SparsifySettings) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)
    rank = settings.rank
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(hf, config)


# ---- the loss --------------------------------------------------------------------------------------------

_AT_ONCE = 2**27
"""Logits widened at once, in numbers: 512 MB in float32."""

Block = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def excess_block(student: Tensor, dense: Tensor, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ over rows of C, and its derivative by the student's logits, softmax − q; logits `[N, V]`, the rest `[N]`."""
    ours, theirs = (logits.float().log_softmax(-1) for logits in (student, dense))
    goal = (1 - weight[:, None]) * theirs.exp()
    goal = goal.scatter_add(-1, tokens[:, None], weight[:, None])
    return (goal * (theirs - ours)).sum(), (ours.exp() - goal).to(student.dtype)


class _Excess(torch.autograd.Function):
    """The derivative is computed on the way, some rows at a time, so that no float32 copy of all logits is held."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, dense: Tensor, tokens: Tensor, weight: Tensor, block: Block, rows: int
    ) -> Tensor:
        slope = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            value, slope[part] = block(student[part], dense[part], tokens[part], weight[part])
            total += value
        ctx.save_for_backward(slope)
        return total / len(student)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * (grads[0] / len(slope)), None, None, None, None, None


def excess(student: Tensor, dense: Tensor, ids: Tensor, weight: Tensor, block: Block | None = None) -> Tensor:
    """C in nats per token, from the logits `[B, T, V]` after each token of `ids[B, T]`.

    weight: w of every sequence `[B]`.
    block: a compiled `excess_block`, which widens nothing and may have all rows at once.
    """
    ours, theirs = student[:, :-1].flatten(0, 1), dense[:, :-1].flatten(0, 1)
    rows = len(ours) if block is not None else max(1, _AT_ONCE // ours.shape[1])
    tokens, weights = ids[:, 1:].flatten().long(), weight.repeat_interleave(ids.shape[1] - 1)
    value: Tensor = _Excess.apply(ours, theirs, tokens, weights, block or excess_block, rows)
    return value


class Multiplier:
    """λ, which grows while the bound is broken and falls while there is room.

    λ ← λ·exp(η·violation), where the violation is the moving average of C − τ in units of τ, held within ±1 so
    that a bad start or a long rest cannot send λ away; for the same reason λ itself has a floor and a ceiling. All
    on the device: no update waits for a number.
    """

    LEAST, MOST = 1.0, 300.0
    _KEPT = 0.95  # of the moving average, per update

    def __init__(self, start: float, rate: float, bound: float, device: torch.device) -> None:
        self.rate, self.bound = rate, bound
        self.value = torch.tensor(start, dtype=torch.float32, device=device)
        self.average = torch.tensor(bound, dtype=torch.float32, device=device)

    def update(self, now: Tensor) -> None:
        """In place, so that the same numbers can be used by a recorded update."""
        self.average.mul_(self._KEPT).add_(now.detach().float(), alpha=1 - self._KEPT)
        violation = ((self.average - self.bound) / self.bound).clamp(-1, 1)
        self.value.mul_(torch.exp(self.rate * violation)).clamp_(self.LEAST, self.MOST)
