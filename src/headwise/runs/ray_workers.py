"""Workers of a Ray cluster: how many there are and what each gets; what runs in one, with the calls of a stage."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headwise.errors import HeadwiseError, hint
from headwise.runs.info import versions
from headwise.runs.step import Job
from headwise.runs.store import Encoded, encode_result

SPARE = 1_000_000_000
"""Bytes of memory that a worker needs beside its models: Python, torch, and the batch it works on."""


class Plan(NamedTuple):
    """So many workers, each with so much of a machine."""

    workers: int
    cores: int
    """Of each worker; as many threads compute in it."""
    devices: int
    """GPUs of each worker; 0 where cores do the work."""


def plan(
    nodes: Sequence[Mapping[str, float]],
    *,
    workers: int | None = None,
    cores_per_worker: int | None = None,
    devices_per_worker: int | None = None,
    device: str | None = None,
    replica_bytes: int = 0,
) -> Plan:
    """Divide the nodes (their `CPU`, `GPU` and `memory`) among workers.

    With GPUs, and unless `device` is "cpu", a worker for each (or each `devices_per_worker`). Otherwise a worker for
    each core (or each `cores_per_worker`), as far as memory goes for a replica of the models in each; where it does
    not, fewer workers share the cores. `workers` asks for a number of its own.
    """
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if (device or "").startswith("cuda") and not gpus:
        raise HeadwiseError(
            f"the device is {device}, but the Ray cluster has no GPU; give {hint('device', 'cpu')}"
        )
    if devices_per_worker and (device == "cpu" or not gpus):
        reason = "the device is cpu" if device == "cpu" else "the Ray cluster has no GPU"
        raise HeadwiseError(f"devices_per_worker is given, but {reason}; give cores_per_worker")
    devices = (devices_per_worker or 1) if gpus and device not in ("cpu", "mps") else 0
    slots = [_slots(node, cores_per_worker, devices, replica_bytes) for node in nodes]
    used = [(int(node.get("CPU", 0)), room) for node, room in zip(nodes, slots, strict=True) if room]
    if device == "mps":  # one device that all processes of the machine share
        used = [(cores, 1) for cores, _ in used]
    if not used:
        size = f"{devices} GPUs" if devices else f"{cores_per_worker or 1} cores"
        raise HeadwiseError(
            f"no machine of the Ray cluster has room for one worker ({size}, {(replica_bytes + SPARE) / 1e9:.1f} GB of "
            "memory); give smaller ones, or a larger machine"
        )
    room = sum(count for _, count in used)
    if cores_per_worker is None:
        # Asked for fewer workers than there is room for, each can have more cores.
        share = min(max(1, cores // count) for cores, count in used)
        few = workers is not None and len(used) == 1 and workers < used[0][1]
        cores_per_worker = max(1, used[0][0] // (workers or 1)) if few and not devices else share
    return Plan(workers or room, cores_per_worker, devices)


def _slots(node: Mapping[str, float], cores: int | None, devices: int, replica_bytes: int) -> int:
    """Workers that fit on one machine."""
    if devices:
        return int(node.get("GPU", 0)) // devices
    by_cores = int(node.get("CPU", 0)) // (cores or 1)
    by_memory = int(node.get("memory", 0) // (replica_bytes + SPARE))
    return min(by_cores, by_memory)


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
