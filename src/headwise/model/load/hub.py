"""Loading by name: from the hub where it answers, else from the copy that it left on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.hub import hub_is_silent
from headwise.model.load import checkpoint


def reached(load: Callable[..., Any], place: str, **options: Any) -> Any:
    """`load(place, ...)`, a `from_pretrained` of transformers, that never waits for a silent hub."""
    only_here = not Path(place).is_dir() and hub_is_silent()
    return load(place, **({"local_files_only": True} if only_here else {}), **options)


def snapshot(name: str, revision: str | None) -> Path | None:
    """The folder of this machine's copy of a model on the hub, with the files that transformers would open in it.

    They are fetched where they are not there yet, so that they can be checked before transformers opens them. None
    where the hub has no such model, or none with safetensors.
    """
    from transformers.utils.hub import cached_file

    only_here = hub_is_silent()

    def fetched(file: str) -> Path | None:
        path = cached_file(
            name,
            file,
            revision=revision,
            local_files_only=only_here,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return None if path is None else Path(path)

    try:
        config = fetched("config.json")
        if config is None:
            return None
        fetched("adapter_config.json")
        chosen = checkpoint.named_weights(config.parent)
        wanted = (checkpoint.WHOLE, checkpoint.INDEX) if chosen is None else (chosen,)
        found = next((path for path in map(fetched, wanted) if path is not None), None)
        if found is None:
            return None
        if found.name.endswith(".index.json"):
            for shard in checkpoint.shard_names(found):
                # Anything else is not fetched at all: the check refuses the index that names it.
                if shard.endswith(".safetensors"):
                    fetched(shard)
    except (OSError, ValueError):  # an unknown name, no access: transformers says it in the same way
        return None
    return config.parent
