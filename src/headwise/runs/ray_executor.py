"""Computing steps on a Ray cluster: one that is started for the run on this machine, or one that is there already.

Each worker is an actor that loads the study's models itself, from the hub or a folder that it sees. It is sent the
calls of a stage once, then the number of one call after the other, and sends back what the store keeps; this process
alone writes. A worker that dies is replaced and its call computed again.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.display import counted
from headwise.errors import HeadwiseError, flag
from headwise.progress import progress
from headwise.runs.compute import LocalExecutor
from headwise.runs.info import versions
from headwise.runs.ray_workers import Plan, Worker, plan
from headwise.runs.step import Call, Finished
from headwise.runs.stopping import handlers_kept

log = logging.getLogger("headwise")

ATTEMPTS = 3
"""Workers that may die over one call, and in a row while starting, before the run gives up."""
ROWS = 8
"""Most workers whose current calls are shown; more would fill the screen."""
STORE_BYTES = 200_000_000
"""The object store of a cluster of our own: calls and results are small, and weights never pass through it."""
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
_OWN_CLUSTER = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Nothing is reported to anybody, and workers get as much of the machine as this process would."""
PATIENCE = 60.0
"""Seconds without any started worker after which a warning says what is missing."""


@dataclass(eq=False)
class _WorkerHandle:
    """A worker as this process sees it."""

    number: int
    actor: Any
    host: str = ""
    """Known once it has started."""
    stage: int = 0
    """The last stage that it was sent."""
    row: ExitStack = field(default_factory=ExitStack)
    """Its line under the progress bar."""

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" on {self.host}" if self.host else "")


class RayExecutor:
    """An `Executor` whose workers live as long as it does. Close it, or use it in a `with` block."""

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cores_per_worker: int | None = None,
        devices_per_worker: int | None = None,
        device: str | None = None,
        replica_bytes: Callable[[], int] = lambda: 0,
        progress: bool = True,
    ) -> None:
        """address: of an existing cluster ("auto" for this machine's, "HOST:6379", "ray://HOST:10001"); by default
        what RAY_ADDRESS says, else a cluster of our own is started here, without dashboard or usage statistics.

        workers, cores_per_worker, devices_per_worker: by default one worker for each GPU, or for each core where
        there is none. device: the study's own, which decides between the two. replica_bytes: what the models of
        one worker weigh.
        """
        if importlib.util.find_spec("ray") is None:
            raise HeadwiseError("the engine 'ray' needs Ray: pip install 'headwise[ray]'")
        counts = {
            "workers": workers,
            "cores_per_worker": cores_per_worker,
            "devices_per_worker": devices_per_worker,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise HeadwiseError(f"{name} is {value}; expected at least 1")
        self._asked: dict[str, Any] = {**counts, "device": device}
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"
        _authenticate(own_cluster=self._address == "local")
        self._replica_bytes, self._progress = replica_bytes, progress
        self._ray: Any = None
        self._connected_here = False
        self._plan = Plan(0, 1, 0)
        self._members: list[_WorkerHandle] = []
        self._starting: dict[Any, _WorkerHandle] = {}
        self._workers_begun = self._stages = self._failed_starts = 0

    # ---- the executor's part ---------------------------------------------------------------------------

    def run(
        self, calls: Sequence[Call[Any]], folder: Path | None = None, progress: bool = False
    ) -> Generator[Finished, None, None]:
        """As every executor. Calls without a cost run no model: those are computed here, which saves sending what they
        put together."""
        remote = [call for call in calls if call.cost is not None]
        if remote:
            yield from self._run_remotely(remote)
        yield from LocalExecutor().run([call for call in calls if call.cost is None], folder)

    def close(self) -> None:
        """End the workers, and the cluster or the connection where this executor began it."""
        for member in list(self._members):
            self._end_worker(member)
        self._starting = {}
        if self._ray is not None and self._connected_here:
            self._ray.shutdown()
        self._ray = None

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- calls -----------------------------------------------------------------------------------------

    def _run_remotely(self, calls: Sequence[Call[Any]]) -> Generator[Finished, None, None]:
        from ray import cloudpickle

        # Together, so that calls share their models; a live model is refused here, before a cluster is started.
        packed = cloudpickle.dumps([(call.step.function, call.arguments) for call in calls])
        self._connect()
        stage = self._ray.put(packed)
        self._stages += 1
        waiting, died = deque(range(len(calls))), Counter[int]()
        under_way: dict[Any, tuple[_WorkerHandle, int]] = {}
        idle = [member for member in self._members if member.host]
        try:
            while waiting or under_way:
                while waiting and idle:
                    member, number = idle.pop(0), waiting.popleft()
                    under_way[self._send(member, number, calls[number].label, stage)] = member, number
                self._start_workers(len(waiting))
                ref = self._next_ended([*under_way, *self._starting])
                if ref in self._starting:
                    idle += self._check_started(self._starting.pop(ref), ref)
                    continue
                member, number = under_way.pop(ref)
                call = calls[number]
                member.row.close()
                try:
                    answer = self._ray.get(ref)
                except Exception as error:
                    if not _worker_was_lost(error):
                        if sys.version_info >= (3, 11):
                            error.add_note(f"while computing {call.label} on {member.name}")
                        raise
                    died[number] += 1
                    self._count_death(member, call.label, died[number], error)
                    waiting.appendleft(number)
                    continue
                if isinstance(answer, str):
                    raise HeadwiseError(answer)
                idle.append(member)
                yield Finished(call, *answer)
        finally:
            for member, _ in under_way.values():  # the run ends early: these calls are called off
                self._end_worker(member)

    def _send(self, member: _WorkerHandle, number: int, label: str, stage: Any) -> Any:
        if member.stage != self._stages:
            member.actor.stage.remote(stage)
            member.stage = self._stages
        show = self._progress and self._plan.workers <= ROWS
        member.row.enter_context(progress(f"  {member.name}: {label}", 1, show=show))
        return member.actor.compute.remote(number)

    def _next_ended(self, under_way: list[Any]) -> Any:
        """Wait for one of these tasks to end."""
        while True:
            ended, _ = self._ray.wait(under_way, num_returns=1, timeout=PATIENCE)
            if ended:
                return ended[0]
            if not any(member.host for member in self._members):
                log.warning(
                    "no worker has started for %.0f s; each asks for %s, which the Ray cluster has not given yet",
                    PATIENCE,
                    _each(self._plan),
                )

    # ---- workers ---------------------------------------------------------------------------------------

    def _start_workers(self, waiting: int) -> None:
        """Start workers for the calls that wait, as far as the plan goes."""
        for _ in range(min(self._plan.workers - len(self._members), waiting - len(self._starting))):
            self._workers_begun += 1
            actor = self._ray.remote(Worker).options(
                num_cpus=self._plan.cores, num_gpus=self._plan.devices, max_restarts=0, max_task_retries=0
            )
            member = _WorkerHandle(self._workers_begun, actor.remote(self._plan.cores))
            self._members.append(member)
            self._starting[member.actor.here.remote()] = member

    def _check_started(self, member: _WorkerHandle, ref: Any) -> list[_WorkerHandle]:
        """The worker if it has started, none if it died while starting."""
        try:
            host, installed = self._ray.get(ref)
        except Exception as error:
            if not _worker_was_lost(error):
                raise
            self._end_worker(member)
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                raise HeadwiseError(
                    f"{ATTEMPTS} Ray workers in a row could not be started ({_cause(error)}); every machine of the "
                    "cluster needs the same Python and the same headwise"
                ) from error
            return []
        ours = {name: version for name, version in versions().items() if name != "python"}
        pairs = [(name, installed.get(name), version) for name, version in ours.items()]
        other = [f"{name} {theirs} and not {version}" for name, theirs, version in pairs if theirs != version]
        if other:
            raise HeadwiseError(
                f"the worker on {host} has {', '.join(other)}, so its numbers could differ from this machine's; "
                "install the same versions everywhere"
            )
        member.host, self._failed_starts = host, 0
        return [member]

    def _count_death(self, member: _WorkerHandle, label: str, died: int, error: Exception) -> None:
        """A worker died while computing a call: warn, and give up where this happened too often."""
        self._end_worker(member)
        if died >= ATTEMPTS:
            raise HeadwiseError(
                f"{ATTEMPTS} workers died while computing {label} (the last: {_cause(error)}); most "
                f"often memory ran out, so give fewer workers, a smaller {flag('batch_tokens')}, or larger machines"
            ) from error
        log.warning(
            "%s died while computing %s; it is replaced and the step is computed again", member.name, label
        )

    def _end_worker(self, member: _WorkerHandle) -> None:
        member.row.close()
        self._members.remove(member)
        with suppress(Exception):  # dead already, or the connection to the cluster is gone
            self._ray.kill(member.actor)

    # ---- the cluster -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._ray is not None:
            return
        import ray

        if not ray.is_initialized():
            with handlers_kept():
                self._start_cluster(ray) if self._address == "local" else self._join(ray)
            self._connected_here = True
        self._ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._plan = plan(nodes, **self._asked, replica_bytes=self._replica_bytes())
        each = _each(self._plan) + " each" * (self._plan.workers != 1)
        log.info(
            "ray: %s with %s, %s", counted(self._plan.workers, "worker"), each, counted(len(nodes), "machine")
        )

    def _start_cluster(self, ray: Any) -> None:
        for name, value in _OWN_CLUSTER.items():
            os.environ.setdefault(name, value)
        cores = (self._asked["workers"] or 0) * (self._asked["cores_per_worker"] or 1)
        try:
            ray.init(
                address="local",
                num_cpus=max(cores, _cores()),
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                **_QUIET,
            )
        except Exception as error:  # a full disk, no free port, a limit on memory: Ray has many kinds
            raise HeadwiseError(
                f"Ray could not be started on this machine: {_cause(error)}; free memory and space in "
                f"{tempfile.gettempdir()}, give the address of a running cluster ({flag('address')}), or leave out "
                "the engine ray"
            ) from error

    def _join(self, ray: Any) -> None:
        try:
            _check_reachable(self._address)
            ray.init(address=self._address, **_QUIET)
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            raise HeadwiseError(
                f"the Ray cluster at {self._address} could not be joined: {_cause(error)}; start one with 'ray start "
                "--head' (the same RAY_AUTH_TOKEN on both sides), or leave the address out to start one on this machine"
            ) from error


def _authenticate(own_cluster: bool) -> None:
    """Let only this process and its workers talk to a cluster of our own, and show our token to any other.

    Ray listens on every network of the machine and runs what it is sent; with a token, only from those who know it (Ray
    2.52 and later). It reads these variables once, so after it has been imported it is too late, and a change would
    lock us out.
    """
    if "ray" in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return
    given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if own_cluster and not given:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if own_cluster or given or (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_MODE"] = "token"


def _check_reachable(address: str) -> None:
    """Raise `OSError` where nothing listens there: Ray itself would try for minutes, and then end this process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _each(plan: Plan) -> str:
    return counted(plan.devices, "GPU") if plan.devices else counted(plan.cores, "core")


def _worker_was_lost(error: Exception) -> bool:
    """Whether the worker, its machine or its answer was lost, rather than the computation wrong."""
    from ray import exceptions

    lost = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.OutOfMemoryError)
    return isinstance(error, (*lost, exceptions.ObjectLostError, exceptions.NodeDiedError))


def _cause(error: Exception) -> str:
    """The last line of what Ray says: a traceback of another process ends with what happened."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
