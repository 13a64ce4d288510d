"""Loading by name: from the hub where it answers, else from its cache on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.errors import panics_as_errors
from headwise.hub import hub_is_silent
from headwise.model.load import checkpoint


def from_pretrained(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """`load(source, ...)`, a `from_pretrained` of transformers, that never waits for a silent hub."""
    only_local = not Path(source).is_dir() and hub_is_silent()
    with panics_as_errors():
        return load(source, **({"local_files_only": True} if only_local else {}), **options)


def snapshot(name: str, revision: str | None) -> Path | None:
    """The folder in the hub's cache with the files of a model that transformers would open.

    Missing files are downloaded, so that they can be checked before transformers opens them. None where the hub has no
    such model, or none with safetensors.
    """
    from transformers.utils.hub import cached_file

    # A file that is missing or cannot be fetched gives None.
    kinds = ("gated_repo", "missing_entries", "connection_errors")
    options: dict[str, Any] = {f"_raise_exceptions_for_{kind}": False for kind in kinds}
    options |= {"revision": revision, "local_files_only": hub_is_silent()}

    def fetched(file: str) -> Path | None:
        path = cached_file(name, file, **options)
        return None if path is None else Path(path)

    try:
        config = fetched("config.json")
        if config is None:
            return None
        fetched("adapter_config.json")
        chosen = checkpoint.named_weights(config.parent)
        names = (checkpoint.WHOLE, checkpoint.INDEX) if chosen is None else (chosen,)
        weights = next((path for path in map(fetched, names) if path is not None), None)
        if weights is None:
            return None
        if weights.name.endswith(".index.json"):
            for shard in checkpoint.shard_names(weights):
                # Anything else is not fetched at all: the check refuses the index that names it.
                if shard.endswith(".safetensors"):
                    fetched(shard)
    except (OSError, ValueError):  # an unknown name, no access: transformers says it in the same way
        return None
    return config.parent
