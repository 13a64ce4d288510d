"""The next token and the continuation of a prompt under gates, and the attribution of every head.

The first forward pass of a continuation reads the prompt, so it gives the next-token distribution as well: a click
costs one pass, and the tokens that follow cost one step with the KV cache each.

T tokens, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.errors import HeadwiseError
from headwise.explorer.prompt_cache import LONGEST, LastPass, Prompt, PromptCache, can_skip_blocks, piece_of
from headwise.explorer.requests import Attribution, OfPrompt, Run
from headwise.explorer.worker import Event, Job
from headwise.model.forward.decode import Batch
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.run import Pass
from headwise.model.forward.short_view import ShortView
from headwise.model.generation.prompts import continuation, end_tokens
from headwise.model.measure.references import short_view
from headwise.model.model import Model
from headwise.names import window_of

LISTED = 12
"""Most likely tokens of each model that are shown."""
MOST_ATTRIBUTED = 1024
"""Longest prompt with live attribution, in tokens: a backward pass keeps the activations of every layer."""


@dataclass
class Intervention:
    """The gates of a request, ready for a forward pass over its prompt."""

    gates: np.ndarray  # L, H
    reference: dict[int, Tensor] | ShortView | None = None
    first: int | None = None
    """Of a patch: the first token that differs. Heads are patched from there to the end of the prompt; the tokens that
    the model writes have no partner in the counterfactual, and no gates act there."""

    replaced_by: str = "zero"
    """Names what replaces the heads: equal names and gates mean equal passes over one prompt."""

    @property
    def layers(self) -> set[int]:
        return {int(layer) for layer in np.flatnonzero((self.gates != 1).any(1))}

    def hook(self, model: Model, prompt: int, unread: int, values: Tensor | None = None) -> HeadGates | None:
        """The gates at `unread` tokens after a prompt of `prompt` tokens; None where they change nothing.

        values: gates `[1, L, H]` that need a gradient.
        """
        if values is None and not self.layers:
            return None
        gates, layers = values, None
        if gates is None:
            gates, layers = torch.from_numpy(self.gates)[None].to(model.device, model.gate_dtype), self.layers
        if self.first is None:
            return HeadGates(gates, layers, self.reference)
        if unread < prompt:  # one new token, after a cached prompt
            return None
        mask = torch.arange(unread)[None] >= self.first
        mask[:, prompt:] = False
        assert isinstance(self.reference, dict)
        padded = {layer: pad(z, (0, 0, 0, 0, 0, unread - prompt)) for layer, z in self.reference.items()}
        return HeadGates(gates, layers, padded, mask.to(model.device))


class Live:
    """Answers requests about one prompt."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.prompts = PromptCache(model)
        self.ends = end_tokens(model)

    def intervention(self, prompt: Prompt, request: OfPrompt) -> Intervention:
        """The gates of a request with what replaces the heads."""
        intervention = Intervention(request.gate_array(self.model), replaced_by=request.reference)
        if request.reference == "mean":
            intervention.reference = self.prompts.means(prompt)
        elif request.reference == "patch":
            intervention.reference, intervention.first = self.prompts.donor(prompt, request)
            intervention.replaced_by = f"patch {request.counterfactual}"
        elif sizes := window_of(request.reference):
            intervention.reference = short_view(self.model, *sizes, len(prompt.ids), "prompt")
        return intervention

    def warm(self, job: Job) -> Iterator[Event]:
        """What the first click should not wait for: what was proven of decoding, and kernels that are made once."""
        prompt = Prompt(self.model.text.encode("a b"))
        for _ in self._steps(prompt, Intervention(np.ones(self.model.shape)), 2, job):
            pass
        yield {"event": "warm"}

    # ---- next token and continuation -------------------------------------------------------------------

    def run(self, request: Run, job: Job) -> Iterator[Event]:
        """Events: `next` (the distribution), `token`s of the gated and of the full model, `done`.

        The gated model comes first: it is what the click asked for. The full model's text is computed once per prompt.
        """
        prompt = self.prompts.get(request, room=request.new_tokens - 1)
        plain = Intervention(np.ones(self.model.shape, dtype=np.float32))
        changed = any(gate != 1 for *_, gate in request.gates)
        gated = self.intervention(prompt, request) if changed else plain
        yield {"event": "prompt", "tokens": len(prompt.ids)}
        if changed and prompt.full is None:
            # Reading a long prompt once more would take longer than writing its text.
            if len(prompt.ids) > LONGEST:
                yield from self._written(prompt, plain, request, job, "full", False)
            else:
                ids = torch.tensor([prompt.ids], device=self.model.device)
                prompt.full = self._last_logits(ids, job).log_softmax(-1)
        cached = bool(prompt.text) and (prompt.ended or len(prompt.text) >= request.new_tokens)
        if cached:
            tokens = prompt.text[: request.new_tokens]
            ended = prompt.ended and len(tokens) == len(prompt.text)
            yield {"event": "text", "side": "full", "tokens": tokens, "ended": ended}
        if changed:
            yield from self._written(prompt, gated, request, job, "gated", True)
            if not cached:
                yield from self._written(prompt, plain, request, job, "full", False)
        elif cached and prompt.full is not None:
            yield self._next(prompt.full, prompt.full)
        else:
            yield from self._written(prompt, plain, request, job, "full", True)
        yield {"event": "done"}

    def _written(
        self, prompt: Prompt, intervention: Intervention, request: Run, job: Job, side: str, tell: bool
    ) -> Iterator[Event]:
        """The tokens of one side as they are written; `tell` the distribution first."""
        written: list[dict[str, Any]] = []
        shown = ""
        ended = False
        for step, logits in enumerate(self._steps(prompt, intervention, request.new_tokens, job, keep=tell)):
            if step == 0:
                if side == "full":
                    prompt.full = logits.log_softmax(-1)
                assert prompt.full is not None
                if tell:
                    yield self._next(prompt.full, logits.log_softmax(-1))
            token = int(logits.argmax())
            ended = token in self.ends
            if ended:
                break
            text = continuation(self.model, prompt.ids, [*(one["id"] for one in written), token])
            # Half a character is shown when its other half is there.
            piece = "" if text.endswith("\ufffd") else text[len(shown) :]
            shown += piece
            written.append({"id": token, "text": piece})
            yield {"event": "token", "side": side, **written[-1]}
        if side == "full":
            prompt.text, prompt.ended = written, ended
        yield {"event": "written", "side": side, "ended": ended}

    def _steps(
        self, prompt: Prompt, intervention: Intervention, count: int, job: Job, keep: bool = False
    ) -> Iterator[Tensor]:
        """Next-token logits `[vocabulary]` after the prompt, then after each token of the greedy continuation.

        keep: the next click will change these gates, so what blocks compute is kept.
        """
        ids = prompt.ids
        able = self.model.capabilities.decoding
        piece = piece_of(self.model, len(ids))
        batch = Batch(
            self.model.hf, [ids], pad=able.pad, cached=able.cache, piece=piece, hooks=self.model.hooks
        )
        for step in range(count):
            edits = edits_of(intervention.hook(self.model, len(ids), batch.unread), job)
            # Contexts must not span a yield: another job may run between two steps.
            with torch.inference_mode():
                first = step == 0
                logits = (
                    self._first(batch, prompt, intervention, edits, keep) if first else batch.logits(**edits)
                )
            yield logits[0]
            batch.append(logits.argmax(-1))

    def _first(
        self, batch: Batch, prompt: Prompt, intervention: Intervention, edits: dict[str, Any], keep: bool
    ) -> Tensor:
        """The pass over the prompt, without the blocks that compute what they computed in the pass before."""
        narrow = self.model.capabilities.narrow  # only the last token's logits are read
        if not can_skip_blocks(self.model, len(prompt.ids)):
            with self.model.running():
                return batch.logits(**edits, narrow=narrow)
        streams: dict[int, Tensor] = {}
        last, gates, replaced_by = prompt.last_pass, intervention.gates, intervention.replaced_by
        same = 0 if last is None else last.unchanged_blocks(gates, replaced_by)
        resume_from = None if last is None or same == 0 else (same - 1, last.streams[same - 1])
        with self.model.running():
            logits = batch.logits(**edits, narrow=narrow, record_streams=streams, resume_from=resume_from)
        if last is not None and same:
            batch.fill(last.layers[:same])
            streams |= {block: last.streams[block] for block in range(same)}
        if keep:
            prompt.last_pass = LastPass.of(batch, streams, gates, replaced_by)
        return logits

    def _last_logits(self, ids: Tensor, job: Job) -> Tensor:
        last = torch.full((1, 1), ids.shape[1] - 1, device=ids.device)
        with torch.inference_mode(), self.model.running():
            return self.model.run(Pass(ids=ids, scored=last, **edits_of(None, job))).logits[0, 0]

    def _next(self, full: Tensor, gated: Tensor) -> Event:
        """The most likely tokens of both, with both probabilities, and KL(full ‖ gated) in nats."""
        count = min(LISTED, len(full))
        ids = list(dict.fromkeys([*full.topk(count).indices.tolist(), *gated.topk(count).indices.tolist()]))
        p, q = full.double(), gated.double()
        rows = [
            {"id": t, "text": self._token(t), "full": p[t].exp().item(), "gated": q[t].exp().item()}
            for t in ids
        ]
        kl = (p.exp() * (p - q)).nansum().item()
        return {"event": "next", "tokens": rows, "kl": max(0.0, kl)}

    def _token(self, token: int) -> str:
        return self.model.text.readable_token(token)

    # ---- attribution -----------------------------------------------------------------------------------

    def attribution(self, request: Attribution, job: Job) -> Iterator[Event]:
        """∂ log p(target) / ∂ gate at gates 1, in nats: positive where the head helps the target on this prompt.

        The first-order estimate of ablating each head alone, as the score method `attribution`.
        """
        prompt = self.prompts.get(request)
        if len(prompt.ids) > MOST_ATTRIBUTED:
            raise HeadwiseError(
                f"the prompt has {len(prompt.ids)} tokens; live attribution takes at most {MOST_ATTRIBUTED}. Shorten "
                "it, or colour the map by a score of a run"
            )
        model = self.model
        if request.target is not None and request.target >= model.vocabulary:
            raise HeadwiseError(
                f"token {request.target} is not in the vocabulary of {model.vocabulary} tokens"
            )
        intervention = self.intervention(prompt, request)
        ids = torch.tensor([prompt.ids], device=model.device)
        last = torch.full((1, 1), len(prompt.ids) - 1, device=model.device)
        values = torch.ones(1, *model.shape, dtype=model.gate_dtype, device=model.device, requires_grad=True)
        hook = intervention.hook(model, len(prompt.ids), len(prompt.ids), values)
        with model.frozen():
            logits = model.run(Pass(ids=ids, scored=last, **edits_of(hook, job))).logits[0, 0]
            logprobs = logits.log_softmax(-1)
            target = int(logprobs.argmax()) if request.target is None else request.target
            (gradient,) = torch.autograd.grad(logprobs[target], values)
        scores = np.where(model.exists, gradient[0].double().cpu().numpy(), np.nan)
        yield {
            "event": "attribution",
            "values": listed(scores),
            "target": {"id": target, "text": self._token(target)},
            "logprob": float(logprobs[target].detach()),
        }


def listed(values: np.ndarray, digits: int = 6) -> list[Any]:
    """Rows of numbers for JSON, rounded to significant digits; None where there is none."""
    return [
        [float(f"{v:.{digits}g}") if isfinite(v) else None for v in row]
        for row in np.atleast_2d(values).tolist()
    ]


def edits_of(gates: HeadGates | None, job: Job) -> dict[str, Any]:
    """The fields of a pass that apply gates, with a look at each layer whether the job is still wanted."""

    def check(layer: int, z: Tensor) -> Tensor:
        job.check()
        return z if gates is None else gates(layer, z)

    return {"heads": check, "attention": gates and gates.attention}
