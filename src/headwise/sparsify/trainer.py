"""The training loop: noisy edge gates, a low-rank adapter, a bound on what may be lost.

Minimises log(share of open edges) + λ·(C − τ): the same minimum under the same bound as the share itself (arXiv
2512.05865), but pulling as hard at 3 % as at 60 %. Every update seeds itself with its own number, so a training
that was killed resumes to the same weights.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.errors import HeadwiseError, first_line, flag, hint
from headwise.files import explain_disk_errors, replacing
from headwise.model.forward.kernels import GraphPool, Replay, tf32_products
from headwise.model.sites.patch import attention_named
from headwise.model.sparse import edge_gates as sparse
from headwise.model.sparse.edge_gates import EdgeCounts
from headwise.sparsify.data import Pool
from headwise.sparsify.settings import SparsifySettings
from headwise.sparsify.student import Multiplier, Student, excess, excess_block

# ---- the state of a training on disk, in safe formats, written whole or not at all -----------------------
# DIR/training/settings.json: the settings; other settings in the same folder are refused. samples.safetensors: text
# sampled from the model. state.safetensors: adapter, both moments of the optimiser, multiplier, history so far.
# curve.csv: the history, for people. One file holds everything that must agree, so that a kill between two files
# cannot mix two steps.


HISTORY = ("excess", "share", "multiplier", "gradient_norm")
"""Columns of the history, one row per update."""
CHECKS = ("step", "excess", "share", "cross_entropy", "dense_cross_entropy")
"""Columns of the checks of the hard-gated model."""


class Disk:
    """The folder of one training."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / "training"

    def begin(self, settings: Mapping[str, Any], fresh: bool) -> None:
        """Make the folder, or check that the existing one belongs to the same training."""
        path = self.folder / "settings.json"
        with explain_disk_errors(self.out):
            if fresh and self.folder.is_dir():
                for file in self.folder.iterdir():
                    file.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                before = json.loads(path.read_text(encoding="utf-8"))
                names = sorted({*before, *settings})
                pairs = [(name, before.get(name), settings.get(name)) for name in names]
                changes = ", ".join(f"{name}: {old!r} → {new!r}" for name, old, new in pairs if old != new)
                if changes:
                    raise HeadwiseError(
                        f"{self.out} holds a training with other settings ({changes}); give the same settings to "
                        f"resume it, {flag('out')} another folder, or {hint('fresh', True)} to start over"
                    )
                return
            with replacing(path) as partial:
                partial.write_text(json.dumps(dict(settings), indent=1) + "\n", encoding="utf-8")

    def save(self, name: str, tensors: Mapping[str, Tensor], step: int = 0) -> None:
        from safetensors.torch import save_file

        ready = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        with explain_disk_errors(self.out), replacing(self.folder / f"{name}.safetensors") as partial:
            save_file(ready, partial, {"step": str(step)})

    def load(self, name: str) -> tuple[dict[str, Tensor], int] | None:
        """The tensors and the step that `save` was given; None before the first `save`."""
        from safetensors import safe_open

        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 no mapping
            return tensors, int((file.metadata() or {}).get("step", 0))

    def write_curves(self, history: Tensor, checks: Tensor) -> None:
        """The history as two tables that anybody can read."""
        for name, columns, rows in (
            ("curve.csv", ("step", *HISTORY), [[i + 1, *row] for i, row in enumerate(history.tolist())]),
            ("checks.csv", CHECKS, checks.tolist()),
        ):
            lines = [",".join(columns), *(",".join(f"{number:.6g}" for number in row) for row in rows)]
            with explain_disk_errors(self.out), replacing(self.folder / name) as partial:
                partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- the training ----------------------------------------------------------------------------------------


log = logging.getLogger("headwise")


class Trainer:
    """One student, its data, and the state of its training."""

    def __init__(
        self,
        student: Student,
        pool: Pool,
        settings: SparsifySettings,
        disk: Disk,
        compiled: bool | None = None,
        recorded: bool | None = None,
    ) -> None:
        self.student, self.pool, self.settings, self.disk = student, pool, settings, disk
        self.device = device = student.device
        self.on_gpu = device.type == "cuda"
        # Numbers that change from update to update lie on the device, so that an update can be recorded.
        self.rate = torch.tensor(settings.rate, device=device)
        self.row = torch.zeros(1, dtype=torch.long, device=device)
        self.ids = torch.zeros(settings.batch, settings.length, dtype=torch.long, device=device)
        self.text_weight = (settings.text_weight * pool.given).to(device)
        self.optimiser = torch.optim.AdamW(
            student.parameters.values(),
            lr=self.rate if self.on_gpu else settings.rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=self.on_gpu,
            capturable=self.on_gpu,
        )
        self.multiplier = Multiplier(settings.multiplier, settings.multiplier_rate, settings.bound, device)
        self.history = torch.zeros(settings.steps, len(HISTORY), device=device)
        self.checks = torch.zeros(0, len(CHECKS), dtype=torch.float64)
        self.step = 0
        self._compile(self.on_gpu if compiled is None else compiled)
        self._work = Replay(
            self._on_device,
            GraphPool() if self.on_gpu and recorded is not False else None,
            simplify=partial(self._compile, False) if self.compiled else None,
        )
        self._resume()

    # ---- the state on disk -----------------------------------------------------------------------------

    def _resume(self) -> None:
        stored = self.disk.load("state")
        if stored is None:
            return
        tensors, self.step = stored
        for name, parameter in self.student.parameters.items():
            parameter.data.copy_(tensors[f"adapter.{name}"])
            self.optimiser.state[parameter] = {
                "step": torch.tensor(float(self.step), device=self.device if self.on_gpu else "cpu"),
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
        for name, parameter in self.student.parameters.items():
            state = self.optimiser.state[parameter]
            tensors[f"adapter.{name}"] = parameter
            tensors[f"first.{name}"], tensors[f"second.{name}"] = state["exp_avg"], state["exp_avg_sq"]
        self.disk.save("state", tensors, self.step)
        self.disk.write_curves(self.history[: self.step].cpu(), self.checks)

    # ---- updates ---------------------------------------------------------------------------------------

    def train(self, seconds: float | None = None, report: Callable[[str], None] = log.info) -> bool:
        """Train until all updates are done (True) or `seconds` have passed (False); the state is saved."""
        settings, began, reported, at_start = self.settings, time.monotonic(), 0.0, self.step
        with ExitStack() as stack:
            stack.enter_context(tf32_products(self.device))
            if not settings.dense:
                stack.enter_context(attention_named(self.student.hf, lambda _: sparse.NOISY))
            if self.step == 0:
                self._check()
            while self.step < settings.steps:
                if seconds is not None and time.monotonic() - began > seconds:
                    break
                self._update_or_stop_compiling()
                self.step += 1
                last = self.step == settings.steps
                if last or self.step % settings.check_every == 0:
                    self._check()
                if last or self.step % settings.checkpoint_every == 0:
                    self._checkpoint()
                if last or (self.step % 10 == 0 and time.monotonic() - reported > 10):
                    line = self._line()  # waits for the device, so the pace is the real one
                    reported = time.monotonic()
                    pace = (self.step - at_start) / (reported - began)
                    minutes = (settings.steps - self.step) / pace / 60
                    report(f"{line}, {pace:.2f}/s, about {minutes:.1f} min left")
            if self.step < settings.steps and self.step > at_start:
                self._checkpoint()
        done = self.step == settings.steps
        if done and not settings.dense:
            self._warn_of_overfitting()
        return done

    def _warn_of_overfitting(self) -> None:
        lost, trained = float(self.checks[-1, 1]), float(self.history[-100:, 0].mean())
        if lost > 1.5 * max(trained, self.settings.bound):
            log.warning(
                "held-back text loses %.3f nats per token, training text %.3f: the model overfits the training text. "
                "More text, a larger sample or fewer steps help.",
                lost,
                trained,
            )

    def _update_or_stop_compiling(self) -> None:
        try:
            self._update()
        except Exception as error:
            if not self.compiled or isinstance(error, torch.OutOfMemoryError):
                raise
            # Compiling needs a C compiler and, on a GPU, Triton; without them the same numbers take longer.
            log.warning("torch.compile does not work here (%s); continuing without it", first_line(error))
            self._compile(False)
            self._update()

    def _compile(self, on: bool) -> None:
        self.compiled = on
        self._excess_block = torch.compile(excess_block, dynamic=False) if on else None
        self.student.compile(on)

    def _update(self) -> None:
        torch.manual_seed(self.settings.seed * 1_000_003 + self.step)
        self.ids.copy_(self.pool.batch(self.step))
        self.student.temperature.fill_(self._temperature())
        self.row.fill_(self.step)
        self.rate.fill_(self._rate())
        if not self.on_gpu:
            self.optimiser.param_groups[0]["lr"] = self._rate()
        self._work()

    def _on_device(self) -> None:
        """The part of an update that never reads a number from the device."""
        settings, ids = self.settings, self.ids
        self.student.draw_noise()
        dense = self.student.dense_logits(ids)
        lost = excess(self.student.logits(ids), dense, ids, self.text_weight, self._excess_block)
        if settings.dense:
            share, loss = torch.ones_like(lost), lost
        else:
            share = sparse.expected_share(self.student.hooks)
            price = self.multiplier.value.clone()
            # Dividing by 1 + λ changes no minimum, and keeps the size of the gradient when λ moves.
            loss = (torch.log(share) + price * (lost - settings.bound)) / (1 + price)
        # Not loss.backward(): that adds to gradients on the stream of an earlier pass, which cannot be recorded.
        parameters = list(self.student.parameters.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimiser.step()
        row = torch.stack([number.detach().float() for number in (lost, share, self.multiplier.value, norm)])
        self.history.index_copy_(0, self.row, row[None])
        if not settings.dense:
            self.multiplier.update(lost)

    def _rate(self) -> float:
        """Linear to the largest rate, then along a cosine to a hundredth of it."""
        settings = self.settings
        if self.step < settings.warmup:
            return settings.rate * (self.step + 1) / settings.warmup
        along = (self.step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return settings.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along)))

    def _temperature(self) -> float:
        """Constant at first, then falling linearly in the last part of the updates."""
        settings = self.settings
        first = settings.steps * (1 - settings.anneal)
        along = max(0.0, (self.step - first) / max(1.0, settings.steps - first))
        return settings.temperature + along * (settings.final_temperature - settings.temperature)

    # ---- checks of the model with hard gates -----------------------------------------------------------

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")
    def _check(self) -> None:
        """Excess, share and cross-entropy of the hard-gated model on held-back text; write the model as it is."""
        rows, settings = self.pool.held_back, self.settings
        counts = EdgeCounts(self.student.hooks.shape, settings.length)
        totals = np.zeros(3)
        weights = settings.text_weight * self.pool.held_back_given.to(self.device)
        parts = rows.long().to(self.device).split(settings.batch)
        for part, weight in zip(parts, weights.split(settings.batch), strict=True):
            dense = self.student.dense_logits(part)
            ours = self.student.hard_logits(part, counts)
            lost = float(excess(ours, dense, part, weight))
            totals += len(part) * np.array([lost, _cross_entropy(ours, part), _cross_entropy(dense, part)])
        lost, text_loss, before = totals / len(rows)
        share = 1.0 if settings.dense else counts.share
        if self.step > 0:
            self.student.save(self.disk.out, {"step": self.step, "excess": lost, "share": share})
        now = torch.tensor([[self.step, lost, share, text_loss, before]], dtype=torch.float64)
        self.checks = torch.cat([self.checks, now])

    # ---- progress --------------------------------------------------------------------------------------

    def _line(self) -> str:
        """Loss, share and multiplier, averaged over the last updates."""
        recent = self.history[max(0, self.step - 20) : self.step].mean(0).tolist()
        parts = [f"update {self.step}/{self.settings.steps}", f"excess {recent[0]:.4f}"]
        if not self.settings.dense:
            parts += [f"open {100 * recent[1]:.2f} %", f"multiplier {recent[2]:.3g}"]
            step, lost, share, *_ = self.checks[-1].tolist()
            parts.append(f"hard gates at {int(step)}: excess {lost:.4f}, open {100 * share:.2f} %")
        return ", ".join(parts)


def _cross_entropy(logits: Tensor, ids: Tensor) -> float:
    tokens = ids[:, 1:].flatten()
    parts = zip(logits[:, :-1].flatten(0, 1).split(1024), tokens.split(1024), strict=True)
    return sum(float(cross_entropy(part.float(), of, reduction="sum")) for part, of in parts) / len(tokens)
