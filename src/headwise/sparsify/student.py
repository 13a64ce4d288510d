"""The model that is trained, beside the dense one it is compared with."""

from __future__ import annotations

import copy
import dataclasses
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
