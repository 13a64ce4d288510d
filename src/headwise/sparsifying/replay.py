"""One update as one CUDA graph.

A small model's update is thousands of short kernels; starting them from Python takes longer than running them.
Recorded once, they are started together. What changes from update to update (tokens, learning rate, noise, the
row of the history) lies in tensors that are filled in before each replay; noise follows torch's own generator,
which a replay reads afresh.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

log = logging.getLogger("headwise")

_WARM_UPS = 3


class Replay:
    """Calls `work` a few times, then records it and replays the recording."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._works = True

    def __call__(self) -> None:
        if not self._works:
            self.work()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < _WARM_UPS:
            # Libraries set themselves up on first use, and must do so on a stream that is not being recorded.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.work()
            torch.cuda.current_stream().wait_stream(side)
            self._warm += 1
        else:
            self._record()
            self()

    def _record(self) -> None:
        """Recording runs nothing; where a model does something that cannot be recorded, every update is started
        from Python as before."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.work()
        except Exception as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            log.warning("an update cannot be recorded as a CUDA graph (%s); going on without", first)
            self._works = False
            torch.cuda.synchronize()
            return
        self._graph = graph
