"""Where a loaded model came from, so that another process can load it for itself.

Weights never travel between processes. A `Model` that is copied into another one arrives there as its source and
options, and is loaded once for all copies; its fingerprint says whether the same weights were found.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model.model import Model

_replicas: dict[str, Model] = {}
"""The models of this process that came as copies, by what was asked for."""


@dataclass(frozen=True)
class Origin:
    """What `load` was given, in words that mean the same in every process."""

    source: str
    """A bundled alias, a hub id, or an absolute path."""
    device: str | None
    """What kind of device; which one is the other process's own matter."""
    options: dict[str, Any] = field(default_factory=dict)
    """The other arguments of `load`."""


def origin(source: str | Path, device: Any, options: dict[str, Any]) -> Origin:
    """How to load the same model elsewhere."""
    place = Path(source).expanduser()
    given = str(place.resolve()) if place.exists() else str(source)
    return Origin(given, None if device is None else str(device).partition(":")[0], options)


def reduced(model: Model) -> tuple[Any, ...]:
    """A model as pickle is to write it: without its weights."""
    if model.origin is None:
        raise HeadwiseError(
            f"{model.name} is a live model (or was given a tokenizer of its own), and weights are not sent to other "
            "processes; save model and tokenizer with save_pretrained and give the folder, which every worker must see"
        )
    named = {**model.origin.options, "name": model.name, "dtype": str(model.dtype).removeprefix("torch.")}
    return replica, (Origin(model.origin.source, model.origin.device, named), model.fingerprint)


def replica(found: Origin, fingerprint: str) -> Model:
    """The model of that origin, loaded at the first call."""
    from headwise.model.load.load import load

    key = repr(found)
    if key not in _replicas:
        _replicas[key] = load(found.source, device=found.device, **found.options)
    model = _replicas[key]
    if model.fingerprint != fingerprint:
        raise HeadwiseError(
            f"{found.source} on {socket.gethostname()} is not the model that the study was begun with (fingerprint "
            f"{model.fingerprint}, not {fingerprint}); give every worker the same folder or revision"
        )
    return model
