"""Work of one fixed shape as one CUDA graph.

A small model's pass is thousands of short kernels; starting them from Python takes longer than running them.
Recorded once, they are started together. What changes from call to call lies in tensors that are filled in before
each replay; random numbers follow torch's own generator, which a replay reads afresh.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from headwise.model.sites.patch import attribute

log = logging.getLogger("headwise")

_WARM_UPS = 3


class GraphPool:
    """One stream and one pool of memory for recordings that never run at the same time.

    Each of them then uses the memory of the others; alone, each would keep its own for good.
    """

    def __init__(self) -> None:
        # One stream for warming up and recording: what autograd remembers of one must be valid in the other.
        self.stream = torch.cuda.Stream()
        self.handle = torch.cuda.graph_pool_handle()


class Replay:
    """Calls `work` a few times, then records it and replays the recording.

    Where it cannot be recorded, `simplify` (if there is one) may take away the likeliest reason, and recording is
    tried once more; after that every call is started from Python as usual. Without a `pool` nothing is recorded.
    """

    def __init__(
        self,
        work: Callable[[], None],
        pool: GraphPool | None,
        *,
        simplify: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.pool = pool
        self._simplify = simplify
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None

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
            reason = _first_reason(error)
            if self._simplify is not None:
                log.warning("a CUDA graph could not be recorded (%s); trying a simpler form", reason)
                self._simplify()
                self._simplify, self._warm = None, 0
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


def _first_reason(error: BaseException) -> str:
    """What went wrong first: ending a broken recording raises an error of its own on top."""
    while error.__context__ is not None:
        error = error.__context__
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _forget_recording() -> None:
    """A recording that broke leaves the generator waiting for its end; a fresh state is not."""
    torch.cuda.synchronize()
    for index, generator in enumerate(torch.cuda.default_generators):
        fresh = torch.Generator(device=f"cuda:{index}")
        fresh.manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
    torch.cuda.empty_cache()
