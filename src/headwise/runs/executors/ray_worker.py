"""What runs in a Ray worker: it holds the calls of a stage, and with them the models, and computes one at a time."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from headwise.errors import HeadwiseError
from headwise.runs.folder.info import versions
from headwise.runs.step import Job
from headwise.runs.store.store import Encoded, encode_result


class Worker:
    """One actor: one device, or some cores. A call at a time."""

    def __init__(self, threads: int) -> None:
        # Read by torch when it is imported, which is with the first stage.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        self._packed: bytes | None = None
        self._calls: Any = None

    def here(self) -> tuple[str, dict[str, str]]:
        """Its machine, and what is installed there."""
        return socket.gethostname(), versions()

    def stage(self, packed: bytes) -> None:
        """Take over the calls that follow. They are unpacked, and their models loaded, with the first."""
        self._packed, self._calls = packed, None

    def compute(self, number: int) -> tuple[Encoded, float] | str:
        """A call's result and its seconds, or the sentence of a `HeadwiseError`."""
        from ray import cloudpickle

        try:
            if self._calls is None:
                self._calls, self._packed = cloudpickle.loads(self._packed), None
            began = time.monotonic()
            function, arguments = self._calls[number]
            result = encode_result(function(Job(), **arguments))
            return result, time.monotonic() - began
        except HeadwiseError as error:
            return str(error)
