"""The root of the command line, and the options that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., Any])

app = typer.Typer(
    name="headwise",
    help="Find the attention heads that matter for a behaviour of a language model, and prove it.\n\n"
    "Begin with `headwise demo`, or look at one model: `headwise check smollm2`, `headwise score smollm2 ioi`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelName = Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")]


class Options(BaseModel):
    """Options that several commands have. The text below a field is its help, its alias its name for users."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    seed: int = Field(0, ge=0)
    """random seed"""
    device: str | None = None
    """cpu, cuda, cuda:1, mps, auto (spread over all); by default an accelerator if any"""
    dtype: str | None = None
    """float32, bfloat16, float16, float64"""
    trust_remote_code: bool = False
    """run code from the model's repository"""
    truncate: bool = Field(False, alias="--truncate")
    """cut prompts that are too long for the model from the left"""
    option: list[str] | None = Field(None, alias="--set")
    """any other setting, as key=value"""
    fresh: bool = False
    """set an earlier run in the same folder aside"""
    batch_tokens: int | None = Field(None, ge=1)
    """most tokens in one forward pass"""
    engine: str = "local"
    """where cells are computed: local, or ray (many processes)"""
    address: str | None = None
    """ray: an existing cluster (auto, HOST:6379, ray://HOST:10001)"""
    workers: int | None = Field(None, ge=1)
    """ray: number of workers; by default all GPUs, else all cores"""
    cores_per_worker: int | None = Field(None, ge=1)
    """ray: cores, and threads, of one worker"""
    devices_per_worker: int | None = Field(None, ge=1)
    """ray: GPUs of one worker"""


COMPUTE = "device dtype batch_tokens truncate engine address workers cores_per_worker devices_per_worker"
STUDY = ("option", "fresh", *COMPUTE.split())
"""The options of the commands that run a study."""


def with_options(*names: str, of: type[BaseModel] = Options) -> Callable[[Command], Command]:
    """Give a command these fields as options; it gets them as keyword arguments."""

    def decorate(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [_parameter(name, of.model_fields[name]) for name in names]
        function.__signature__ = signature.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    least = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    option = typer.Option(*filter(None, [field.alias]), help=field.description, min=least)
    kind, default = inspect.Parameter.KEYWORD_ONLY, field.default
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[field.annotation, option])
