"""The root of the command line, the options that several commands have, and the names that the shell completes."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from headwise.cli import output
from headwise.errors import command_line
from headwise.names import reference_name

LISTS = ("models", "tasks", "metrics", "methods", "studies", "settings", "families")
"""What `headwise list` lists."""
_NAMES = {
    "lists": LISTS,
    "models": ("smollm2", "minilm", "smollm2-sparse", "smollm2-control"),
    "methods": tuple(
        "ablation attribution direct gating integrated keep nested norm pattern probe random sensitivity".split()
    ),
    "references": ("zero", "mean", "position_mean", "resample", "patch", "window"),
}
"""Names whose registries import torch; a test compares them. Names of plug-ins are not completed."""


def names(kind: str) -> list[str]:
    """Every name of a kind: models, tasks, methods, references, studies, lists."""
    if kind == "tasks":
        from headwise.tasks import families

        return list(families())
    if kind == "studies":
        folder = Path(__file__).parents[1] / "studies"
        return sorted(file.parent.name for file in folder.glob("*/study.py"))
    return list(_NAMES[kind])


def complete(kind: str) -> Callable[[str], list[str]]:
    """The function that typer asks for the names that begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names(kind) if name.startswith(incomplete)]

    return complete


Command = TypeVar("Command", bound=Callable[..., Any])

PANELS = {
    "Model": "model base dtype trust_remote_code",
    "Data": "task data n seed truncate columns",
    "What to compute": "config method components heads given metric reference window sink positions precision top "
    "confidence k "
    "quick steps option dry_run",
    "Where to run": "device batch_tokens engine address workers cores_per_worker devices_per_worker",
    "Output": "out fresh as_json quiet verbose",
}
"""Groups of options in the help, by the names of parameters; options that are not named come first."""


class Commands(typer.Typer):
    """Every command has --quiet and --verbose; one that returns its results has --json; options are in groups."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        register = super().command(name, **settings)

        def decorate(function: Command) -> Command:
            register(_with_output_options(function))
            return function

        return decorate


app = Commands(
    name="headwise",
    help="Find the attention heads that matter for a behaviour of a language model, with confidence intervals.\n\n"
    "Begin with `headwise demo`, or look at one model: `headwise check smollm2`, `headwise score smollm2 ioi`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headwise._version import __version__

        typer.echo(f"headwise {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=_print_version, help="show the version and exit"
        ),
    ] = False,
) -> None:
    """The options of `headwise` itself."""


def argument(metavar: str, help: str, names: str = "") -> Any:
    """An argument; names: what the shell completes (models, tasks, …)."""
    return typer.Argument(help=help, autocompletion=complete(names) if names else None, metavar=metavar)


def option(help: str, *flags: str, names: str = "", **limits: Any) -> Any:
    """An option; flags: where they are not those of the parameter's name; names: as of an argument."""
    return typer.Option(*flags, help=help, autocompletion=complete(names) if names else None, **limits)


MODEL_HELP = "bundled alias, hub id, folder or GGUF file; NAME=path gives it a name"
ModelName = Annotated[str, argument("MODEL", MODEL_HELP, "models")]
TaskName = Annotated[
    str, argument("TASK", "a built-in task (headwise list tasks), a file, or hub:owner/name", "tasks")
]
MethodNames = Annotated[list[str] | None, option("score method; repeat for several", names="methods")]
Components = Annotated[
    list[str] | None, option("what is scored: heads, mlps, input; or kv_heads alone; repeat for several")
]
MetricName = Annotated[str | None, option("metric; by default the task's own")]
ABLATION = "ablation type: zero, mean, position_mean, resample, patch, window"
ReferenceName = Annotated[str, option(ABLATION, names="references")]
_POSITIONS = (
    "token positions that gates act on: all, last, 3 or 3,-1 (negative: from the end), or spans: S2 or S2,end"
)
Positions = Annotated[str | None, option(_POSITIONS)]
PositionsOrEach = Annotated[str | None, option(f"{_POSITIONS}, or each (a score of every head there)")]
Limit = Annotated[int, option("number of examples", "-n", "--limit", min=1)]


class Options(BaseModel):
    """Options that several commands have. The text below a field is its help, its alias its names for users."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    config: Path | None = None
    """a study file (YAML), or: published; options override it"""
    out: Path | None = None
    """the run folder; by default runs/STUDY-MODEL-TASK"""
    n: int | None = Field(None, ge=1, alias="-n --limit")
    """number of examples, per task or per ability; by default as many as the study takes"""
    metric: str | None = None
    """metric; by default the task's own"""
    reference: str | None = None
    """ablation type: zero, mean, position_mean, resample, patch, window; by default that of the study"""
    window: int | None = Field(None, ge=1)
    """with --reference window: how many of the last tokens an ablated head sees; by default 64"""
    sink: int | None = Field(None, ge=0)
    """with --reference window: how many of the first tokens it sees; by default 4"""
    dry_run: bool = Field(False, alias="--dry-run")
    """show settings, models, examples, forward rows, minutes and memory; compute and write nothing"""
    seed: int | None = Field(None, ge=0)
    """random seed; by default 0"""
    device: str | None = None
    """cpu, cuda, cuda:1, mps, auto (spread over all devices); by default an accelerator if there is one"""
    dtype: str | None = None
    """float32, bfloat16, float16, float64"""
    base: str | None = None
    """base model of an adapter, instead of the one that the adapter names"""
    trust_remote_code: bool = False
    """run code from the model's repository"""
    truncate: bool = Field(False, alias="--truncate")
    """truncate prompts longer than the context length from the left"""
    option: list[str] | None = Field(None, alias="--set")
    """any other setting, as key=value"""
    quick: bool = Field(False, alias="--quick")
    """fewer examples and points: a first look in at most three minutes"""
    fresh: bool = Field(False, alias="--fresh")
    """move an earlier run in the same folder aside and start again"""
    batch_tokens: int | None = Field(None, ge=1)
    """maximum number of tokens in one forward pass"""
    engine: str = "local"
    """where steps are computed: local, or ray (many processes)"""
    address: str | None = None
    """ray: an existing cluster (auto, HOST:6379, ray://HOST:10001)"""
    workers: int | None = Field(None, ge=1)
    """ray: number of workers; by default all GPUs, else all cores"""
    cores_per_worker: int | None = Field(None, ge=1)
    """ray: cores, and threads, of one worker"""
    devices_per_worker: int | None = Field(None, ge=1)
    """ray: GPUs of one worker"""
    as_json: bool = Field(False, alias="--json")
    """print the results as JSON, and nothing else, on standard output"""
    quiet: bool = Field(False, alias="--quiet -q")
    """no progress and no notes: results and errors only"""
    verbose: bool = Field(False, alias="--verbose -v")
    """debug messages, and tracebacks of errors"""


LOAD = ("base", "device", "dtype", "trust_remote_code")
"""The options of every command that loads a model."""
_ENGINE = "batch_tokens truncate engine address workers cores_per_worker devices_per_worker"
_RUN = "config out n metric reference seed quick dry_run fresh option"
STUDY = (*_RUN.split(), *LOAD, *_ENGINE.split())
"""The options of every command that runs a study."""


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
    limits = {} if least is None else {"min": least}
    names = "references" if name == "reference" else ""
    one = option(field.description or "", *(field.alias or "").split(), names=names, **limits)
    kind, default = inspect.Parameter.KEYWORD_ONLY, field.default
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[field.annotation, one])


def _with_output_options(function: Callable[..., Any]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    names = ["quiet", "verbose"] if signature.return_annotation is None else ["as_json", "quiet", "verbose"]
    sizes = ["window", "sink"] if "reference" in signature.parameters else []
    added = [_parameter(name, Options.model_fields[name]) for name in (*sizes, *names)]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in names}
        given = {name: values.pop(name) for name in sizes}
        with output.verbosity(chosen["quiet"], chosen["verbose"]), command_line():
            if any(size is not None for size in given.values()):
                values["reference"] = reference_name(values["reference"] or "that of the study", **given)
            output.show(lambda: function(**values), chosen.get("as_json", False))

    parameters = [
        _in_panel(one) for one in sorted((*signature.parameters.values(), *added), key=_panel_number)
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _panel_number(parameter: inspect.Parameter) -> int:
    """The place of a parameter's group in the help; 0 for arguments and for options without a group."""
    numbers = [number for number, names in enumerate(PANELS.values(), 1) if parameter.name in names.split()]
    annotations = typing.get_args(parameter.annotation)[1:]
    return numbers[0] if numbers and isinstance(annotations[0], OptionInfo) else 0


def _in_panel(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same parameter, in the help's group for options of its name."""
    parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    if not (number := _panel_number(parameter)):
        return parameter
    kind, option = typing.get_args(parameter.annotation)
    option = copy(option)
    option.rich_help_panel = option.rich_help_panel or list(PANELS)[number - 1]
    return parameter.replace(annotation=Annotated[kind, option])
