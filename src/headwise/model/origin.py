"""Where a loaded model came from, so that another process can load it for itself.

Weights are not sent between processes. A pickled `Model` is its source and options; the other process loads it once
and compares fingerprints.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.files import user_path

_replicas: dict[str, Any] = {}
"""The models that this process loaded from an origin."""


@dataclass(frozen=True)
class Origin:
    """The arguments of `load`, in a form that means the same in every process."""

    load: Callable[..., Any]
    """The function that loads it; another process finds it by its name."""
    source: str
    """A bundled alias, a hub id, or an absolute path."""
    device: str | None
    """The kind of device; the other process chooses which one."""
    options: dict[str, Any] = field(default_factory=dict)
    """The other arguments of `load`."""


def origin(load: Callable[..., Any], source: str | Path, device: Any, options: dict[str, Any]) -> Origin:
    """How to load the same model elsewhere."""
    path = user_path(source)
    name = str(path.resolve() if os.path.exists(path) else source)
    return Origin(load, name, None if device is None else str(device).partition(":")[0], options)


def replica(origin: Origin, fingerprint: str) -> Any:
    """The model of that origin, loaded at the first call."""
    key = repr(origin)
    if key not in _replicas:
        _replicas[key] = origin.load(origin.source, device=origin.device, **origin.options)
    model = _replicas[key]
    if model.fingerprint != fingerprint:
        raise HeadwiseError(
            f"{origin.source} on {socket.gethostname()} is not the model of this study (fingerprint "
            f"{model.fingerprint}, expected {fingerprint}); give every worker the same folder or revision"
        )
    return model
