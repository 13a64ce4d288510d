"""Fewer and larger kernels on an accelerator (`Compiled`), and all of them started together (`Replay`, a CUDA graph).

A norm in bfloat16 reads and writes its numbers eight times where once would do, and the matrix products of a large
model wait for it. `Compiled` lets torch.compile fuse these operations. Norms, feed-forward parts and rotary embeddings
are compiled each by themselves; attention, gates and hooks stay outside, so that nothing of ours is traced and no
family needs to be known.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from headwise.errors import first_line
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import attribute, replaced
from headwise.model.sites.probe import differ_by_rounding, is_feed_forward, is_norm, probe_logits, rounding

log = logging.getLogger("headwise")

_ROTARY = "apply_rotary_pos_emb"
_FORMS = 64
"""Most compiled forms of one function, for different numbers of rows and tokens; beyond it, torch runs it plainly."""


class Compiled:
    """The parts of one model that are compiled, and whether that works here."""

    def __init__(self, hooks: HeadHooks) -> None:
        self.hooks = hooks
        self.parts = [part for block in hooks.blocks for part in _parts(block)]
        self.families = _families(hooks)
        weights = (tuple(p.shape) for p in hooks.blocks[-1].parameters())
        heads = {(site.heads, site.head_dim, site.kv_heads) for site in hooks.sites}
        self.sizes = (*weights, *sorted(heads))
        self.works = self._verified()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """While this holds, the parts run in their compiled form."""
        import torch._dynamo  # takes a second

        def compiled(part: nn.Module) -> Callable[..., Any]:
            return MethodType(_compiled(type(part).forward, self.sizes), part)

        with ExitStack() as undo:
            undo.enter_context(torch._dynamo.config.patch(recompile_limit=_FORMS))
            undo.enter_context(replaced(self.parts, compiled))
            for family in self.families:
                undo.enter_context(
                    attribute(family, _ROTARY, _compiled(getattr(family, _ROTARY), self.sizes))
                )
            yield

    def _verified(self) -> bool:
        """Compile, and compare with the plain model; where there is no compiler, or it errs, say so and do without."""
        model = self.hooks.model
        with torch.inference_mode():
            plain = probe_logits(model)
            try:
                with self.acting():
                    compiled = probe_logits(model)
            except Exception as error:  # compilers fail in many ways, and none of them may end a run
                log.warning("torch.compile does not work here (%s); continuing without it", first_line(error))
                return False
        gap = float((compiled - plain).abs().max())
        if not differ_by_rounding(compiled, plain, rounding(model, plain)):  # sums are taken in another order
            log.warning("compiled parts change the logits by %.2g; continuing without torch.compile", gap)
            return False
        return True


@cache
def _compiled(work: Callable[..., Any], sizes: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
    """The compiled function, one for the models of these sizes.

    Only sizes that are seen to change, rows and tokens, are left open: a rotary embedding that must divide by an
    unknown size of heads takes several times longer. What was seen torch remembers by the function's name, and another
    model's width must not count; so each has a copy of its own name.
    """
    if isinstance(work, FunctionType):
        code = work.__code__.replace(co_name=f"{work.__code__.co_name}_{abs(hash(sizes))}")
        copy = FunctionType(code, work.__globals__, work.__name__, work.__defaults__, work.__closure__)
        copy.__kwdefaults__ = work.__kwdefaults__
        work = copy
    # As eager code rounds after every operation, so does the fused one.
    compiled: Callable[..., Any] = torch.compile(work, options={"emulate_precision_casts": True})
    return compiled


def _parts(block: nn.Module) -> Iterator[nn.Module]:
    """Norms and plain feed-forward parts."""
    for part in block.modules():
        if "forward" in vars(part):  # somebody else's, accelerate's for one
            continue
        if is_norm(part) or is_feed_forward(part):
            yield part


def _families(hooks: HeadHooks) -> list[Any]:
    """The Python modules in which the attention layers find the function that rotates queries and keys."""
    families = {sys.modules[type(site.module).__module__] for site in hooks.sites}
    return [family for family in families if callable(getattr(family, _ROTARY, None))]


@contextmanager
def tf32_products(device: torch.device) -> Iterator[None]:
    """While this holds, a GPU may round float32 products to TF32: for training, not for what is reported."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---- work of one fixed shape as one CUDA graph -----------------------------------------------------------
# A small model's pass is thousands of short kernels; starting them from Python takes longer than running them.
# Recorded once, they are started together. What changes from call to call lies in tensors that are filled in before
# each replay; random numbers follow torch's own generator, which a replay reads afresh.


_WARM_UPS = 3


class GraphPool:
    """One stream and one pool of memory for recordings that never run at the same time.

    Each of them then uses the memory of the others; alone, each would keep its own for good.
    """

    def __init__(self) -> None:
        # One stream for warming up and recording: what autograd remembers of one must be valid in the other.
        self.stream = torch.cuda.Stream()
        self.handle = torch.cuda.graph_pool_handle()


@dataclass
class Replay:
    """Calls `work` a few times, then records it and replays the recording.

    Where it cannot be recorded, `simplify` (if there is one) may take away the likeliest reason, and recording is
    tried once more; after that every call is started from Python as usual. Without a `pool` nothing is recorded.
    """

    work: Callable[[], None]
    pool: GraphPool | None
    simplify: Callable[[], None] | None = None
    _warm: int = field(default=0, init=False)
    _graph: torch.cuda.CUDAGraph | None = field(default=None, init=False)

    def __call__(self) -> None:
        if self.pool is None:
            self.work()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < _WARM_UPS:
            # Libraries set themselves up on first use, and must do so on a stream that is not being recorded.
            stream = self.pool.stream
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), _as_if_recording():
                self.work()
            torch.cuda.current_stream().wait_stream(stream)
            self._warm += 1
        else:
            self._record(self.pool)
            self()

    def _record(self, pool: GraphPool) -> None:
        """Recording runs nothing; the call that follows does."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with _as_if_recording(), torch.cuda.graph(graph, pool=pool.handle, stream=pool.stream):
                self.work()
        except Exception as error:
            _forget_recording()
            cause: BaseException = error
            while (
                cause.__context__ is not None
            ):  # ending a broken recording raises an error of its own on top
                cause = cause.__context__
            reason = first_line(cause)
            if self.simplify is not None:
                log.warning("a CUDA graph could not be recorded (%s); trying a simpler form", reason)
                self.simplify()
                self.simplify, self._warm = None, 0
            else:
                log.warning("a CUDA graph could not be recorded (%s); continuing without it", reason)
                self.pool = None
            return
        self._graph = graph


def _as_if_recording() -> AbstractContextManager[None]:
    """transformers builds other masks while a stream is being recorded. It must build the same ones while warming up:
    compiled code that meets another mask is compiled again, which a recording does not survive."""
    from transformers import masking_utils

    return attribute(masking_utils, "is_tracing", lambda *_: True)


def _forget_recording() -> None:
    """A recording that broke leaves the generator waiting for its end; a fresh state is not."""
    torch.cuda.synchronize()
    for index, generator in enumerate(torch.cuda.default_generators):
        fresh = torch.Generator(device=f"cuda:{index}")
        fresh.manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
    torch.cuda.empty_cache()
