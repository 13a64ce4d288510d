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


class Replay:
    """Calls `work` a few times, then records it and replays the recording.

    Where it cannot be recorded, `simplify` (if there is one) may take away the likeliest reason, and recording is
    tried once more; after that every call is started from Python as usual. `record=False` never records.
    """

    def __init__(
        self, work: Callable[[], None], *, simplify: Callable[[], None] | None = None, record: bool = True
    ) -> None:
        self.work = work
        self._simplify = simplify
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._record_graph = record
        # One stream for warming up and recording: what autograd remembers of one must be valid in the other.
        self._stream = torch.cuda.Stream() if record else None

    def __call__(self) -> None:
        if not self._record_graph:
            self.work()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < _WARM_UPS:
            # Libraries set themselves up on first use, and must do so on a stream that is not being recorded.
            assert self._stream is not None
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream), _as_if_recording():
                self.work()
            torch.cuda.current_stream().wait_stream(self._stream)
            self._warm += 1
        else:
            self._record()
            self()

    def _record(self) -> None:
        """Recording runs nothing; the call that follows does."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with _as_if_recording(), torch.cuda.graph(graph, stream=self._stream):
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
                self._record_graph = False
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
