"""The root of the command line, and the options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="headwise",
    help="Find the attention heads that matter for a behaviour of a language model, and prove it.\n\n"
    "Begin with `headwise demo`, or look at one model: `headwise check smollm2`, `headwise score smollm2 ioi`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1, mps, auto (spread over all); by default an accelerator if any"),
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64")]
Engine = Annotated[str, typer.Option(help="where cells are computed: local, or ray for many processes")]
Address = Annotated[
    str | None, typer.Option(help="ray: an existing cluster (auto, HOST:6379, ray://HOST:10001)")
]
Workers = Annotated[
    int | None, typer.Option(help="ray: how many; by default all GPUs, else all cores", min=1)
]
CoresPerWorker = Annotated[int | None, typer.Option(help="ray: cores, and threads, of one worker", min=1)]
DevicesPerWorker = Annotated[int | None, typer.Option(help="ray: GPUs of one worker", min=1)]
BatchTokens = Annotated[int | None, typer.Option(help="tokens in one forward pass, at most about", min=1)]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="cut prompts that are too long for the model from the left")
]
Trust = Annotated[bool, typer.Option(help="run code from the model's repository")]
ModelName = Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")]
