"""The command line. Nothing is decided here: each command hands over to the room that knows.

Heavy imports are inside the commands, so that `headwise --help` answers at once.
"""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.errors import HeadwiseError, first_line

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


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")],
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Annotated[bool, typer.Option(help="run code from the model's repository")] = False,
) -> None:
    """Reach every head of a model, and prove it."""
    from headwise.model.load.load import load

    started = time.perf_counter()
    loaded = load(
        model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, check_every_layer=True
    )
    layers, heads = loaded.shape
    sites, proof, midway = loaded.reach.sites, loaded.proof, loaded.capabilities.enter_midway
    dtype_name = str(loaded.dtype).removeprefix("torch.")
    exactly = "exactly" if proof.noise == 0 else f"within the device's own noise of {proof.noise:.1e}"
    kv_heads, head_size = _span([s.kv_heads for s in sites]), _span([s.head_dim for s in sites])
    lines = [
        f"{loaded.name}: {layers} layers × {heads} heads, {kv_heads} key/value heads, head size {head_size}, "
        f"{dtype_name} on {loaded.device}",
        f"  reached by       {proof.mechanism}",
        f"  gates at 1       the plain model's logits, {exactly}",
        f"  a gate at 0      zeroed columns of the output projection, largest gap {proof.largest_gap:.1e} "
        f"({proof.sites_checked} of {len(sites)} layers)",
        f"  fired            {len(sites)} of {len(sites)} layers with attention",
        f"  prefix reuse     {'yes' if midway else 'no: blocks exchange more than the residual stream'}",
        f"  seconds          {time.perf_counter() - started:.1f} (proof {proof.seconds:.1f})",
    ]
    if layers > len(sites):
        lines.insert(1, f"  {layers - len(sites)} layers have no attention, and so no heads")
    typer.echo("\n".join(lines))


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(help="models, tasks, metrics, methods, studies, settings (of studies) or families"),
    ],
    live: Annotated[
        bool, typer.Option(help="families: try each anew with the installed transformers")
    ] = False,
) -> None:
    """List what there is: models, tasks, metrics, methods, studies and their settings, families."""
    from headwise.cli import listing

    listing.show(what, live=live)


@app.command("task")
def task_(
    name: Annotated[str, typer.Argument(help="a built-in task, a file, or hub:owner/name")],
    show: Annotated[int, typer.Option(help="examples to print", min=0)] = 3,
    model: Annotated[str | None, typer.Option(help="show its tokens and its accuracy on 50 examples")] = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="an option of the task, as key=value")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
) -> None:
    """Show what a task asks and, with --model, how well a model does."""
    from headwise.cli.showing import show_task
    from headwise.studies.settings.resolve import assignments

    how = {"device": device, "dtype": dtype, "truncate": truncate}
    typer.echo(show_task(name, show, model, seed, assignments(option or []), how))


@app.command()
def score(
    model: Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")],
    task: Annotated[
        str, typer.Argument(help="a built-in task (headwise list tasks), a file, or hub:owner/name")
    ],
    method: Annotated[list[str] | None, typer.Option(help="score method; repeat for several")] = None,
    out: Annotated[Path, typer.Option(help="the run folder")] = Path("runs/score"),
    n: Annotated[int, typer.Option("-n", help="examples", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    metric: Annotated[str | None, typer.Option(help="by default the task's own")] = None,
    reference: Annotated[str, typer.Option(help="what a gated-out head is replaced by")] = "zero",
    positions: Annotated[str, typer.Option(help="where gates act: all or last")] = "all",
    precision: Annotated[float | None, typer.Option(help="ablation: run only enough for ± this")] = None,
    top: Annotated[int | None, typer.Option(help="ablation: run only enough to tell the first K")] = None,
    confidence: Annotated[float | None, typer.Option(help="of --precision or --top; 0.95")] = None,
    option: Annotated[list[str] | None, typer.Option("--set", help="any other setting, as key=value")] = None,
    fresh: Annotated[bool, typer.Option(help="set an earlier run in the same folder aside")] = False,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    truncate: Truncate = False,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    cores_per_worker: CoresPerWorker = None,
    devices_per_worker: DevicesPerWorker = None,
) -> None:
    """Score every head of a model on a task; the same command again resumes."""
    early = {"precision": precision, "top": top, "confidence": confidence}
    settings = {
        "models": [model],
        "tasks": [task],
        "methods": method or ["ablation"],
        "n": n,
        "seed": seed,
        "metric": metric,
        "reference": reference,
        "positions": positions,
        "method_options": {name: value for name, value in early.items() if value is not None},
        "truncate": truncate or None,
    }
    where = _where(engine, address, workers, cores_per_worker, devices_per_worker)
    _run("score", out, None, settings, option, fresh, device, dtype, batch_tokens, where)
    _show_scores(out)


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="which one: headwise list studies")],
    file: Annotated[Path | None, typer.Argument(help="a study file (YAML), or: published")] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default runs/STUDY")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="bundled alias, hub id, folder or GGUF file; repeat for several"),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="name or file; repeat for several")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="a task file, beside or instead of --task")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="a setting of the study, as key=value: headwise list settings"),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="set an earlier run in the same folder aside")] = False,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    truncate: Truncate = False,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    cores_per_worker: CoresPerWorker = None,
    devices_per_worker: DevicesPerWorker = None,
) -> None:
    """Carry out a study into a run folder; the same command again resumes."""
    settings: dict[str, Any] = {"truncate": truncate or None}
    if model:
        settings["models"] = model
    if task or data:
        settings["tasks"] = [*(task or []), *map(str, data or [])]
    where = _where(engine, address, workers, cores_per_worker, devices_per_worker)
    _run(
        study, out or Path("runs") / study, file, settings, option, fresh, device, dtype, batch_tokens, where
    )


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")],
    heads: Annotated[Path, typer.Option(help='a JSON list of "L12H3", or a scores table and --top')],
    out: Annotated[Path, typer.Option(help="the new checkpoint's folder")],
    top: Annotated[int | None, typer.Option(help="only the first K heads of the file")] = None,
    task: Annotated[str | None, typer.Option(help="which map of a run's scores.parquet")] = None,
    method: Annotated[str | None, typer.Option(help="which map of a run's scores.parquet")] = None,
    by: Annotated[str, typer.Option(help="order of scores: signed, absolute or hinders")] = "signed",
    gate: Annotated[float, typer.Option(help="0 removes the heads, above 1 amplifies them")] = 0.0,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Annotated[bool, typer.Option(help="run code from the model's repository")] = False,
) -> None:
    """Bake a mask into the weights: a plain checkpoint any server can run."""
    from headwise.heads.heads_file import read_heads
    from headwise.model.load.export import export as bake
    from headwise.model.load.load import load

    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    chosen = read_heads(heads, top, task=task, method=method, model=loaded.name, by=by)
    folder = bake(loaded, chosen, out, gate)
    typer.echo(
        f"{folder}: {loaded.name} with {len(chosen)} head{'s' * (len(chosen) != 1)} at {gate:g}, "
        f"{str(loaded.dtype).removeprefix('torch.')}; logits equal the gated model's"
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several compare side by side")],
    out: Annotated[Path, typer.Option(help="the page")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page over one or more runs."""
    from headwise.report import write_report

    if out.is_symlink():
        raise HeadwiseError(
            f"{out} is a link, and the page would take its place; give --out a name of its own"
        )
    typer.echo(f"{write_report(runs, out)}: open it in a browser; it needs no network")


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="a finished run folder")],
    cells: Annotated[int, typer.Option(help="how many to compute again", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="which ones")] = 0,
    trust_remote_code: Annotated[bool, typer.Option(help="run code from the model's repository")] = False,
) -> None:
    """Make a run's tables again from its cells, compute a sample of the cells again, and say whether they match."""
    from headwise.studies.verify import summary
    from headwise.studies.verify import verify as compute_again

    results = compute_again(run, cells=cells, seed=seed, trust_remote_code=trust_remote_code)
    for one in results:
        typer.echo(f"{'same' if one.same else 'DIFFERS'}  {one.label}: {one.said}")
    typer.echo(summary(results))
    if not all(one.same for one in results):
        raise typer.Exit(1)


@app.command()
def sparsify(
    model: Annotated[str, typer.Argument(help="bundled alias, hub id or folder")],
    out: Annotated[Path, typer.Option(help="the folder that is made; hw.load opens it")] = Path("sparse"),
    text: Annotated[list[Path] | None, typer.Option(help="a text to train on; repeat for several")] = None,
    sample: Annotated[int, typer.Option(help="sequences sampled from the model itself", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="updates in all", min=1)] = 4000,
    bound: Annotated[float, typer.Option(help="nats per token that may be lost")] = 0.02,
    batch: Annotated[int, typer.Option(help="sequences in one update", min=1)] = 32,
    length: Annotated[int, typer.Option(help="tokens in one sequence", min=8)] = 256,
    rank: Annotated[int, typer.Option(help="of the low-rank adapter", min=1)] = 24,
    rate: Annotated[float, typer.Option(help="largest learning rate")] = 1e-3,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    start: Annotated[Path | None, typer.Option(help="begin from the adapter of an earlier training")] = None,
    dense: Annotated[bool, typer.Option(help="the control: the same training without gates")] = False,
    seconds: Annotated[
        float | None, typer.Option(help="stop cleanly after so long; run again to go on")
    ] = None,
    evaluate: Annotated[bool, typer.Option(help="compare with the dense model on --held-out texts")] = False,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="a text not trained on; repeat for several")
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="the folder of the control, to compare with it too")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="evaluate on so many sequences of each text", min=2)
    ] = None,
    ioi: Annotated[int, typer.Option(help="IOI prompts of the evaluation, 0 for none", min=0)] = 500,
    option: Annotated[list[str] | None, typer.Option("--set", help="any other setting, as key=value")] = None,
    compile: Annotated[bool | None, typer.Option(help="use torch.compile; by default on a GPU")] = None,
    graph: Annotated[
        bool | None, typer.Option(help="record updates as a CUDA graph; by default on a GPU")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="start over in a folder that holds a training")] = False,
    device: Device = None,
) -> None:
    """Train a model to use few edges of its attention; the same command again resumes.

    With --evaluate, and a MODEL that is sparse already, nothing is trained.
    """
    from headwise.sparsify.sparsify import evaluate as compare
    from headwise.sparsify.sparsify import is_sparse
    from headwise.sparsify.sparsify import sparsify as train
    from headwise.studies.settings.resolve import assignments

    finished = evaluate and is_sparse(model)
    if evaluate and not held_out:
        raise HeadwiseError("--evaluate needs text that was not trained on: give --held-out FILE")
    if evaluate and dense:
        raise HeadwiseError(
            "a control has no edge gates to evaluate; give it as --control of its sparse model"
        )
    if not finished:
        settings: dict[str, Any] = {"sample": sample, "steps": steps, "bound": bound, "batch": batch}
        settings |= {"length": length, "rank": rank, "rate": rate, "seed": seed, "dense": dense}
        settings |= assignments(option or [])
        how: dict[str, Any] = {"seconds": seconds, "fresh": fresh, "device": device, "compile": compile}
        done = train(model, text or [], out, start=start, graph=graph, **how, **settings)
        typer.echo(
            f"{out}: done" if done else f"{out}: stopped after {seconds:.0f} s; the same command goes on"
        )
        if not done or not evaluate:
            return
    into = out if finished else out / "evaluation"
    compare(
        model if finished else out,
        held_out or [],
        into,
        control=control,
        length=length,
        limit=limit,
        ioi=ioi,
        device=device,
    )
    typer.echo((into / "summary.txt").read_text(encoding="utf-8") + f"{into}: tables and figures")


@app.command()
def demo(out: Annotated[Path, typer.Option(help="the folder of its runs")] = Path("demo")) -> None:
    """A few minutes with the bundled model: all five studies, small, and one report."""
    from headwise.cli.demo import demo as carry_out

    check("smollm2")
    with _resumable():
        page = carry_out(out, tell=typer.echo)
    typer.echo(f"{page}: open it in a browser")


def _run(
    study: str,
    out: Path,
    file: Path | None,
    settings: dict[str, Any],
    option: list[str] | None,
    fresh: bool,
    device: str | None,
    dtype: str | None,
    batch_tokens: int | None,
    where: dict[str, Any],
) -> None:
    from headwise.studies.base import run as carry_out
    from headwise.studies.settings.resolve import assignments, merge

    flags = {"device": device, "dtype": dtype, "batch_tokens": batch_tokens}
    settings |= {name: value for name, value in flags.items() if value is not None}
    settings = {name: value for name, value in settings.items() if value is not None}
    merge(settings, assignments(option or []))
    with _resumable() as command:
        folder = carry_out(study, out, file, fresh=fresh, command=command, **where, **settings)
    for notice in folder.notices:
        typer.echo(f"note: {notice}", err=True)
    typer.echo(
        f"{out}: tables{', figures and report.html' if folder.report else ' and figures, but no report'}"
    )


def _where(
    engine: str, address: str | None, workers: int | None, cores: int | None, devices: int | None
) -> dict[str, Any]:
    """Where the cells are computed, which is no setting of the study: it changes nothing in the run."""
    given = {"address": address, "workers": workers, "cores_per_worker": cores, "devices_per_worker": devices}
    return {"engine": engine, **given}


@contextmanager
def _resumable() -> Iterator[str]:
    """The command line of this process; after Ctrl-C or SIGTERM the user is told that it goes on from there."""
    from headwise.runs.stopping import stoppable

    command = shlex.join(["headwise", *sys.argv[1:]])
    try:
        with stoppable():
            yield command
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; what is finished is kept, and the same command goes on from there:\n  {command}",
            err=True,
        )
        raise typer.Exit(1) from None


def _show_scores(out: Path) -> None:
    """The heads that stand out, on the terminal."""
    from headwise.runs import read_table

    table = read_table(out, "scores")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        typer.echo(
            f"{name} on {task}, {model}: the ten largest of {len(part)}, n = {_span(part['n'].tolist())}"
        )
        largest = part.reindex(part["score"].abs().sort_values(ascending=False, kind="stable").index)[:10]
        for row in largest.to_dict("records"):
            head = f"L{row['layer']}H{row['head']}"
            q = "" if row["q"] != row["q"] else f"  q = {row['q']:.2g}"
            typer.echo(f"  {head:<8}{row['score']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]{q}")


def _span(numbers: list[int]) -> str:
    """One number, or the range where layers differ."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"


class _Stderr(logging.StreamHandler):  # Python 3.10 cannot subscript it
    """Writes to what the standard error is at the moment: a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main() -> None:
    """Exit 0 done; 2 the user's mistake, one sentence; 1 anything else."""
    import os

    from headwise.runs.stopping import one_interrupt

    # Our own progress bars say what matters; a user who wants transformers' back sets these.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    _fill_closed_streams()
    logging.basicConfig(format="%(message)s", handlers=[_Stderr()])
    logging.getLogger("headwise").setLevel(logging.INFO)
    with one_interrupt():
        code = _exit_code()
        sys.exit(_flushed() or code)


def _exit_code() -> int | str | None:
    """Carry out the command; what goes wrong ends in a sentence of ours."""
    try:
        app()
    except SystemExit as ended:
        return ended.code
    except HeadwiseError as error:
        _say(str(error))
        return 2
    except Exception as error:
        # Where the output is what failed, one more line of it fails too.
        unwritten = _flushed("\n") if isinstance(error, OSError) else 0
        if unwritten:
            return unwritten
        if isinstance(error, RuntimeError | MemoryError) and _out_of_memory(error):
            _say(
                "out of memory; what is finished is kept, so run the same command again with a smaller "
                "--batch-tokens (1024, say), a smaller --dtype or on another --device"
            )
            return 1
        import traceback

        traceback.print_exc()
        _say(
            f"stopped by an error that nobody foresaw ({type(error).__name__}: {first_line(error)}); what was finished "
            "is kept. Please report it with the lines above"
        )
        return 1
    return 0


def _say(sentence: str) -> None:
    """One line on the standard error: messages of other libraries inside a sentence may have several."""
    with suppress(OSError):  # nobody is left to be told
        typer.echo(f"headwise: {' '.join(sentence.split())}", err=True)


def _fill_closed_streams() -> None:
    """Streams that were closed before we began (`>&-`) lead nowhere, instead of into the next file that is opened."""
    import os

    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _flushed(further: str = "") -> int:
    """0 where everything that was said, and `further`, has been written; else the exit code, after a sentence."""
    import errno
    import os

    try:
        sys.stdout.write(further)
        sys.stdout.flush()
        return 0
    except OSError as error:
        # Python tries again when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # `| head`: the reader has what it wanted
            return 1
        _say(f"the output cannot be written: {error.strerror}; what was computed is kept")
        return 2


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    from headwise.model.forward.out_of_memory import out_of_memory

    return out_of_memory(error)


if __name__ == "__main__":
    main()
