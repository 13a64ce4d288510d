"""Where the cells of a study are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError, unknown
from headwise.runs import LocalExecutor
from headwise.studies.workbench import Workbench

if TYPE_CHECKING:
    from headwise.runs.executors.ray_executor import RayExecutor

ENGINES = ("local", "ray")


def chosen_executor(
    engine: str, where: Mapping[str, Any], bench: Workbench, device: str | None
) -> LocalExecutor | RayExecutor:
    """The executor of that name; `where` is the rest that was said about it."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "local":
        for name, value in where.items():
            if value is not None:
                raise HeadwiseError(
                    f"{name} is {value!r}, but only the engine 'ray' has one; give engine 'ray' too"
                )
        return LocalExecutor()
    from headwise.runs.executors.ray_executor import RayExecutor

    bench.spare_devices()
    return RayExecutor(**where, device=device, replica_bytes=bench.replica_bytes, progress=bench.progress)
