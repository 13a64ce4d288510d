"""What runs in a Ray worker: it holds a stage of a study, and with it the models, and computes cells of it."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from headwise.errors import HeadwiseError
from headwise.runs.folder.info import versions
from headwise.runs.store.cells import Cell
from headwise.runs.store.store import Encoded, encode_result


class Worker:
    """One actor: one device, or some cores. A cell at a time."""

    def __init__(self, threads: int) -> None:
        # Read by torch when it is imported, which is with the first stage.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        self._packed: bytes | None = None
        self._compute: Any = None

    def here(self) -> tuple[str, dict[str, str]]:
        """Its machine, and what is installed there."""
        return socket.gethostname(), versions()

    def stage(self, packed: bytes) -> None:
        """Take over what computes the cells that follow. It is unpacked, and its models loaded, with the first."""
        self._packed, self._compute = packed, None

    def compute(self, text: str, kind: str) -> tuple[Encoded, float] | str:
        """A cell's result and its seconds, or the sentence of a `HeadwiseError`."""
        from ray import cloudpickle

        try:
            if self._compute is None:
                self._compute, self._packed = cloudpickle.loads(self._packed), None
            began = time.monotonic()
            result = encode_result(self._compute(Cell.from_text(text, kind)))
            return result, time.monotonic() - began
        except HeadwiseError as error:
            return str(error)
