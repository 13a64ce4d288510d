"""Where a loaded model came from, so that another process can load it for itself.

Weights never travel between processes. A `Model` that is copied into another one arrives there as its source and
options, and is loaded once for all copies; its fingerprint says whether the same weights were found.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError

_replicas: dict[str, Any] = {}
"""The models of this process that came as copies, by what was asked for."""


@dataclass(frozen=True)
class Origin:
    """What `load` was given, in words that mean the same in every process."""

    load: Callable[..., Any]
    """The function that loads it; another process finds it by its name."""
    source: str
    """A bundled alias, a hub id, or an absolute path."""
    device: str | None
    """What kind of device; which one is the other process's own matter."""
    options: dict[str, Any] = field(default_factory=dict)
    """The other arguments of `load`."""


def origin(load: Callable[..., Any], source: str | Path, device: Any, options: dict[str, Any]) -> Origin:
    """How to load the same model elsewhere."""
    place = Path(source).expanduser()
    given = str(place.resolve()) if place.exists() else str(source)
    return Origin(load, given, None if device is None else str(device).partition(":")[0], options)


def replica(found: Origin, fingerprint: str) -> Any:
    """The model of that origin, loaded at the first call."""
    key = repr(found)
    if key not in _replicas:
        _replicas[key] = found.load(found.source, device=found.device, **found.options)
    model = _replicas[key]
    if model.fingerprint != fingerprint:
        raise HeadwiseError(
            f"{found.source} on {socket.gethostname()} is not the model that the study was begun with (fingerprint "
            f"{model.fingerprint}, not {fingerprint}); give every worker the same folder or revision"
        )
    return model
