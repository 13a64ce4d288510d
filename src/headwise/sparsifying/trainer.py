"""The training loop: noisy edge gates, a low-rank adapter, a bound on what may be lost.

Minimises log(share of open edges) + λ·(C − τ): the same minimum under the same bound as the share itself (arXiv
2512.05865), but pulling as hard at 3 % as at 60 %. Every update seeds itself with its own number, so a training
that was killed resumes to the same weights.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model import sparse
from headwise.model.adapter import EdgeGates, weights_fingerprint, write_gates
from headwise.model.edges import EdgeCounts, calibrated_bias
from headwise.model.load import Model
from headwise.sparsifying.checkpoint import CHECKS, HISTORY, Disk
from headwise.sparsifying.objective import Multiplier, excess
from headwise.sparsifying.pool import Pool
from headwise.sparsifying.replay import Replay
from headwise.sparsifying.settings import SparsifySettings

log = logging.getLogger("headwise")

_CALIBRATION_ROWS = 16


class Trainer:
    """One model being made sparse (or, with `dense`, its control)."""

    def __init__(
        self,
        model: Model,
        base: str,
        pool: Pool,
        settings: SparsifySettings,
        disk: Disk,
        compiled: bool | None = None,
        recorded: bool | None = None,
    ) -> None:
        self.model, self.hf, self.reach = model, model.hf, model.reach
        self.pool, self.settings, self.disk = pool, settings, disk
        self.device = model.device
        self.own = str(self.hf.config._attn_implementation)  # type: ignore[union-attr]
        self.student = self.own if settings.dense else sparse.NOISY
        self.hard = self.own if settings.dense else sparse.HARD
        self.temperature = torch.ones((), device=self.device)
        fingerprint = weights_fingerprint(self.hf)
        bias = None if settings.dense else self._install_gates()
        self.gates = EdgeGates(base, fingerprint, bias, dataclasses.asdict(settings))
        self.peft = self._add_adapter()
        self.parameters = {name: p for name, p in self.peft.named_parameters() if p.requires_grad}
        on_chip = self.device.type == "cuda"
        # Numbers that change from update to update lie on the device, so that an update can be recorded.
        self.rate = torch.tensor(settings.rate, device=self.device)
        self.place = torch.zeros(1, dtype=torch.long, device=self.device)
        self.ids = torch.zeros(settings.batch, settings.length, dtype=torch.long, device=self.device)
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.rate if on_chip else settings.rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=on_chip,
            capturable=on_chip,
        )
        self.multiplier = Multiplier(
            settings.multiplier, settings.multiplier_rate, settings.bound, self.device
        )
        self.history = torch.zeros(settings.steps, len(HISTORY), device=self.device)
        self.checks = torch.zeros(0, len(CHECKS), dtype=torch.float64)
        self.step = 0
        self.compiled = on_chip if compiled is None else compiled
        sparse.compile_noise(self.compiled)
        replayed = on_chip if recorded is None else recorded and on_chip
        self._work: Callable[[], None] = Replay(self._on_device) if replayed else self._on_device
        self._resume()

    # ---- before the first update -----------------------------------------------------------------------

    def _install_gates(self) -> np.ndarray:
        """b for every head: the given one, or calibrated on the held-back text, which is the same in every call."""
        given = self.settings.bias
        if given is not None:
            bias = np.full(self.reach.shape, float(given))
        else:
            rows = self.pool.held_back[:_CALIBRATION_ROWS].long().to(self.device)
            bias = calibrated_bias(self.reach, rows, self.settings.closed_mass)
        stored = self.disk.load()
        if stored is not None and "bias" in stored[0]:
            bias = stored[0]["bias"].numpy()  # another device calibrates to other last digits
        sparse.install(self.hf, bias)
        sparse.name_attention(self.hf, self.own)
        sparse.prepare_training(self.reach, self.temperature)
        return bias

    def _add_adapter(self) -> Any:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise HeadwiseError(
                "training needs the package peft; install it with: pip install 'headwise[sparse]'"
            ) from error
        torch.manual_seed(self.settings.seed)
        config = LoraConfig(
            r=self.settings.rank,
            lora_alpha=self.settings.rank,
            target_modules="all-linear",
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        return get_peft_model(self.hf, config)

    def _resume(self) -> None:
        stored = self.disk.load()
        if stored is None:
            return
        tensors, self.step = stored
        for name, parameter in self.parameters.items():
            parameter.data.copy_(tensors[f"adapter.{name}"])
            self.optimiser.state[parameter] = {
                "step": torch.tensor(
                    float(self.step), device=self.device if self.device.type == "cuda" else "cpu"
                ),
                "exp_avg": tensors[f"first.{name}"].to(parameter),
                "exp_avg_sq": tensors[f"second.{name}"].to(parameter),
            }
        self.multiplier.value.copy_(tensors["multiplier"][0])
        self.multiplier.average.copy_(tensors["multiplier"][1])
        self.history[: self.step] = tensors["history"].to(self.device)
        self.checks = tensors["checks"]

    def _checkpoint(self) -> None:
        tensors = {"history": self.history[: self.step], "checks": self.checks}
        tensors["multiplier"] = torch.stack([self.multiplier.value, self.multiplier.average])
        if self.gates.bias is not None:
            tensors["bias"] = torch.from_numpy(self.gates.bias)
        for name, parameter in self.parameters.items():
            state = self.optimiser.state[parameter]
            tensors[f"adapter.{name}"] = parameter
            tensors[f"first.{name}"], tensors[f"second.{name}"] = state["exp_avg"], state["exp_avg_sq"]
        self.disk.save(tensors, self.step)
        self.disk.write_curves(self.history[: self.step].cpu(), self.checks)

    # ---- updates ---------------------------------------------------------------------------------------

    def train(self, seconds: float | None = None, report: Callable[[str], None] = log.info) -> bool:
        """Go on until all updates are done (True) or `seconds` have passed (False); the state is saved."""
        settings, began, said, at_start = self.settings, time.monotonic(), 0.0, self.step
        self.peft.train(False)  # no dropout anywhere; gradients do not need the training mode
        if self.step == 0:
            self._check()
        while self.step < settings.steps:
            if seconds is not None and time.monotonic() - began > seconds:
                break
            self._first_or_next_update()
            self.step += 1
            due = self.step == settings.steps
            if due or self.step % settings.check_every == 0:
                self._check()
            if due or self.step % settings.checkpoint_every == 0:
                self._checkpoint()
            if due or (self.step % 10 == 0 and time.monotonic() - said > 10):
                said = time.monotonic()
                report(self._line(self.step - at_start, said - began))
        if self.step < settings.steps:
            self._checkpoint()
        return self.step == settings.steps

    def _first_or_next_update(self) -> None:
        try:
            self._update()
        except Exception as error:
            if not self.compiled or isinstance(error, torch.OutOfMemoryError):
                raise
            # Compiling needs a C compiler and, on a GPU, Triton; without them the same numbers take longer.
            first = next(iter(str(error).splitlines()), type(error).__name__)
            log.warning("torch.compile does not work here (%s); going on without it", first)
            self.compiled = False
            sparse.compile_noise(False)
            self._update()

    def _update(self) -> None:
        settings, step = self.settings, self.step
        torch.manual_seed(settings.seed * 1_000_003 + step)
        self.ids.copy_(self.pool.batch(step))
        self.temperature.fill_(self._temperature())
        self.place.fill_(step)
        self.rate.fill_(self._rate())
        if self.device.type != "cuda":
            for group in self.optimiser.param_groups:
                group["lr"] = self._rate()
        self._work()

    def _on_device(self) -> None:
        """The part of an update that never asks the device for a number."""
        settings, ids = self.settings, self.ids
        self.optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            dense = self._logits(ids, self.own, adapted=False)
        lost = excess(self._logits(ids, self.student), dense, ids, settings.text_weight)
        if settings.dense:
            share, loss = torch.ones_like(lost), lost
        else:
            share = sparse.expected_share(self.reach)
            price = self.multiplier.value.clone()
            # Dividing by 1 + λ changes no minimum, and keeps the size of the gradient when λ moves.
            loss = (torch.log(share) + price * (lost - settings.bound)) / (1 + price)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        self.optimiser.step()
        row = torch.stack([number.detach().float() for number in (lost, share, self.multiplier.value, norm)])
        self.history.index_copy_(0, self.place, row[None])
        if not settings.dense:
            self.multiplier.update(lost)

    def _logits(self, ids: Tensor, attention: str, adapted: bool = True) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(self._precision())
            stack.enter_context(sparse.named_attention(self.hf, attention))
            if not adapted:
                stack.enter_context(self.peft.disable_adapter())
            logits: Tensor = self.hf(input_ids=ids, use_cache=False).logits
            return logits

    def _precision(self) -> AbstractContextManager[Any]:
        on_chip = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_chip, cache_enabled=False)

    def _rate(self) -> float:
        """Linear to the largest rate, then along a cosine to a hundredth of it."""
        settings = self.settings
        if self.step < settings.warmup:
            return settings.rate * (self.step + 1) / settings.warmup
        along = (self.step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return settings.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along)))

    def _temperature(self) -> float:
        """1, and in the last part of the updates falling on a straight line."""
        settings = self.settings
        first = settings.steps * (1 - settings.anneal)
        along = max(0.0, (self.step - first) / max(1.0, settings.steps - first))
        return 1 + along * (settings.final_temperature - 1)

    # ---- looks at the model as it will be used ---------------------------------------------------------

    @torch.no_grad()
    def _check(self) -> None:
        """Excess, share and cross-entropy of the hard-gated model on held-back text; keep the best model."""
        rows, size = self.pool.held_back, self.settings.batch
        counts = EdgeCounts(self.reach.shape, self.settings.length)
        totals = np.zeros(3)
        for part in rows.long().to(self.device).split(size):
            dense = self._logits(part, self.own, adapted=False)
            with ExitStack() as stack:
                if not self.settings.dense:
                    stack.enter_context(sparse.named_attention(self.hf, self.hard))
                    stack.enter_context(self.reach.watching(counts.watcher(self.reach.sites[0].layer)))
                    stack.enter_context(self._precision())
                    ours = self.hf(input_ids=part, use_cache=False).logits
                else:
                    ours = self._logits(part, self.own)
            lost = float(excess(ours, dense, part, self.settings.text_weight))
            totals += len(part) * np.array([lost, _cross_entropy(ours, part), _cross_entropy(dense, part)])
        lost, own, before = totals / len(rows)
        share = 1.0 if self.settings.dense else counts.share
        now = torch.tensor([[self.step, lost, share, own, before]], dtype=torch.float64)
        if self.step > 0 and self._is_best(lost, share):
            self.save({"step": self.step, "excess": lost, "share": share})
        self.checks = torch.cat([self.checks, now])

    def _is_best(self, lost: float, share: float) -> bool:
        """Fewest open edges within the bound; until one is within it, the least excess. A control: the last."""
        if self.settings.dense or self.step == 0:
            return True
        earlier = [(float(e), float(s)) for _, e, s, *_ in self.checks.tolist()[1:]]
        limit = self.settings.bound
        within = [s for e, s in earlier if e <= limit]
        if lost <= limit:
            return not within or share <= min(within)
        return not within and (not earlier or lost <= min(e for e, _ in earlier))

    def save(self, outcome: dict[str, Any]) -> None:
        """Write the folder that `hw.load` opens, the adapter in bfloat16."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        weights = {
            name: tensor.detach().to(torch.bfloat16).cpu().contiguous()
            for name, tensor in get_peft_model_state_dict(self.peft).items()
        }
        config = self.peft.peft_config["default"]
        config.base_model_name_or_path = self.gates.base
        config.inference_mode = True
        self.disk.out.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(self.disk.out)
        save_file(weights, self.disk.out / "adapter_model.safetensors", {"format": "pt"})
        training = {**self.gates.training, "outcome": outcome}
        write_gates(self.disk.out, dataclasses.replace(self.gates, training=training))

    def _line(self, done: int, seconds: float) -> str:
        """Loss, share and multiplier, averaged over the last updates."""
        recent = self.history[max(0, self.step - 20) : self.step].mean(0).tolist()
        pace = done / max(seconds, 1e-9)
        left = (self.settings.steps - self.step) / max(pace, 1e-9)
        parts = [f"update {self.step}/{self.settings.steps}", f"excess {recent[0]:.4f}"]
        if not self.settings.dense:
            parts += [f"open {100 * recent[1]:.2f} %", f"multiplier {recent[2]:.3g}"]
        if len(self.checks) and not self.settings.dense:
            _, lost, share, *_ = self.checks[-1].tolist()
            parts.append(
                f"hard gates at {int(self.checks[-1, 0])}: excess {lost:.4f}, open {100 * share:.2f} %"
            )
        return ", ".join([*parts, f"{pace:.2f}/s", f"about {left / 60:.1f} min left"])


def _cross_entropy(logits: Tensor, ids: Tensor) -> float:
    flat = logits[:, :-1].flatten(0, 1)
    own = ids[:, 1:].flatten()
    total = sum(
        float(torch.nn.functional.cross_entropy(part.float(), tokens, reduction="sum"))
        for part, tokens in zip(flat.split(1024), own.split(1024), strict=True)
    )
    return total / len(own)
