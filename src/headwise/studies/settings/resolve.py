"""Study files: YAML, flags and `--set a.b=c`, resolved into one checked settings object.

Settings are frozen dataclasses; the YAML's keys are their fields. An unknown key is an error that names the
nearest valid one, a wrong type one that says what was expected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from headwise.constraints import Constraints, NotEmpty, Number, OneOf, Passes, Written, build, check_settings
from headwise.errors import HeadwiseError, shown
from headwise.studies.settings.plain_yaml import parse

__all__ = ["StudySettings", "assignments", "build", "plain", "read_yaml", "resolve"]

Settings = TypeVar("Settings")
Own = TypeVar("Own", bound="StudySettings")


def _dtypes() -> Iterable[str]:
    from headwise.model.load.load import DTYPES

    return DTYPES


def _references() -> Iterable[str]:
    from headwise.model.measure.references import REFERENCES

    return REFERENCES


def _positions() -> Iterable[str]:
    from headwise.model.measure.references import POSITIONS

    return POSITIONS


def _methods() -> Iterable[str]:
    from headwise.scores.registry import methods

    return methods()


def _metrics() -> Iterable[str]:
    from headwise.metrics import metrics

    return metrics()


def _task(source: str) -> None:
    from headwise.tasks.opening import check_source

    check_source(source)


DEVICE = r"cpu|mps|meta|auto|(cuda|xpu|npu|hpu|mlu|musa)(:[0-9]+)?|mps:0|cpu:0"
REFERENCE = OneOf("reference", _references)
POSITIONS = OneOf("positions", _positions)
METHOD = OneOf("method", _methods)
METRIC = OneOf("metric", _metrics)
TASKS = Passes(_task)
"""Constraints that several studies share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What every study can be told; a study adds fields of its own, and may give these other defaults."""

    CONSTRAINTS: ClassVar[Constraints] = {
        "models": NotEmpty("model"),
        "seed": Number(least=0),
        "device": Written(DEVICE, "cpu, cuda, cuda:1, mps or auto"),
        "dtype": OneOf("dtype", _dtypes),
        "batch_tokens": Number(least=1),
    }

    models: tuple[str, ...] = ("smollm2",)
    """Bundled aliases, hub ids, folders or GGUF files; several are shown side by side."""
    seed: int = 0
    """Of everything random."""
    quick: bool = False
    """Smaller numbers everywhere: at most three minutes on two cores with the bundled model."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps; by default an accelerator if there is one."""
    dtype: str | None = None
    """float32, bfloat16, float16, float64; by default float32 on a CPU, else bfloat16."""
    batch_tokens: int | None = None
    """Most tokens in one forward pass."""
    compile: bool = False
    """On an accelerator: fuse small operations with torch.compile, which pays for large models and long runs."""
    truncate: bool = False
    """Cut prompts that are longer than a model was made for from the left; by default they are refused."""
    revision: str | None = None
    """Of models from the hub: a branch, a tag or a commit."""
    trust_remote_code: bool = False
    """Run code from the models' repositories."""

    def __post_init__(self) -> None:
        check_settings(self)

    def at_most(self: Own, **most: int) -> Own:
        """The same with none of these numbers larger than said; one that was not given becomes it. For `quick`."""
        smaller: dict[str, Any] = {}
        for name, limit in most.items():
            given = getattr(self, name)
            smaller[name] = limit if given is None else min(given, limit)
        return dataclasses.replace(self, **smaller)


LARGEST_FILE = 200_000
"""Bytes; a study file is a page of text, and anything larger is not one."""


def resolve(kind: type[Settings], file: str | Path | None, *overrides: Mapping[str, Any]) -> Settings:
    """The settings of a study: its defaults, then the file, then each of `overrides` in turn."""
    values = read_yaml(file) if file is not None else {}
    if values.get("trust_remote_code"):
        raise HeadwiseError(
            f"{file} asks to run code from a model's repository; a file may not. If you trust it, take the line out "
            "and say --set trust_remote_code=true"
        )
    for layer in overrides:
        for given, gone in getattr(kind, "REPLACES", {}).items():
            if given in layer:
                values.pop(gone, None)
        _merge(values, layer)
    return build(kind, values)


def read_yaml(file: str | Path) -> dict[str, Any]:
    """A study file as plain values."""
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise HeadwiseError(f"{file} is no file; a study file is a page of YAML")
        if path.stat().st_size > LARGEST_FILE:
            raise HeadwiseError(
                f"{file} is larger than {LARGEST_FILE // 1000} kB; a study file is a page of YAML"
            )
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HeadwiseError(f"there is no study file {file}") from None
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"the study file {str(file)!r} cannot be read: {error}") from None
    values = parse(text, str(file))
    if values is None:
        raise HeadwiseError(
            f"the study file {file} is empty; give at least one setting, or leave the file out"
        )
    if not isinstance(values, dict):
        raise HeadwiseError(f"{file} holds a {type(values).__name__}; a study file is 'key: value' lines")
    return values


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """`["a.b=3"]` as nested values; the right side is read as YAML, so numbers, lists and true work."""
    nested: dict[str, Any] = {}
    for pair in pairs:
        path, sign, text = pair.partition("=")
        if not sign or not path.strip():
            raise HeadwiseError(f"--set takes key=value, such as --set n=128, not {shown(pair)}")
        try:
            value = parse(text, f"--set {shown(path)}")
        except HeadwiseError as error:
            if "is not YAML" not in str(error):
                raise
            value = text  # a template with braces, a path with a colon: plain text
        *parents, last = path.strip().split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise HeadwiseError(
                    f"--set {shown(path)} goes through {shown(parent)}, which was set to a value before"
                )
        place[last] = value
    return nested


def plain(settings: Any) -> dict[str, Any]:
    """Resolved settings as plain values, for `run.json`."""
    return {f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _merge(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value
