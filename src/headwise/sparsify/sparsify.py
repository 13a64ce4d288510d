"""Sparse-attention post-training: the same model with few open edges, as a small folder that `hw.load` opens.

from headwise.sparsify.sparsify import sparsify
sparsify("smollm2", ["text.txt"], "sparse", sample=8000, steps=4000)
model = hw.load("sparse")
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, flag
from headwise.files import explain_disk_errors, named_source, user_path
from headwise.model.load.bundled import companions
from headwise.model.load.load import load
from headwise.model.model import Model
from headwise.model.sparse.adapter import WEIGHTS, is_adapter
from headwise.progress import progress
from headwise.settings import several
from headwise.sparsify.data import Pool, sample, sequences
from headwise.sparsify.settings import SparsifySettings
from headwise.sparsify.student import Student
from headwise.sparsify.trainer import Disk, Trainer

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("headwise")


def is_sparse(model: str | Path) -> bool:
    """Whether a name or a folder is a finished sparse model or its control, and not one to be trained."""
    source = named_source(model)[1]
    return source in companions() or is_adapter(user_path(source))


def sparsify(
    model: str | Path,
    texts: str | Path | Sequence[str | Path] = (),
    out: str | Path = "sparse",
    *,
    start: str | Path | None = None,
    seconds: float | None = None,
    fresh: bool = False,
    compile: bool | None = None,
    graph: bool | None = None,
    report: Callable[[str], None] = log.info,
    **settings: Any,
) -> bool:
    """Train `model` to use few edges; True when all updates are done.

    texts: files to train on (plain text, or JSON lines); `sample=N` adds sequences from the model itself.
    out: the folder that is made. The same call again resumes a training that was stopped or killed.
    start: a folder that an earlier training made; its adapter is where this one begins.
    seconds: stop cleanly after so long. compile, graph: use torch.compile and a CUDA graph (default: on a GPU,
        where they work).
    settings: fields of `SparsifySettings`; and `device`, `dtype` (float32 by default), `trust_remote_code`, as for
        `hw.load`.
    """
    options = _loading(settings)
    chosen = SparsifySettings(**settings)
    if importlib.util.find_spec("peft") is None:
        raise HeadwiseError(
            "headwise sparsify trains with peft; install it with: pip install 'headwise[sparse]'"
        )
    if is_sparse(model):
        raise HeadwiseError(
            f"{model} was trained by headwise sparsify already; give the dense model it is based on"
        )
    paths = [Path(text) for text in several(texts)]
    disk = Disk(Path(out))
    base = _base_name(str(model))
    inputs: dict[str, Any] = {"model": base, "texts": {path.name: _digest(path) for path in paths}}
    if start is not None:
        inputs["start"] = _digest(Path(start) / WEIGHTS)
    disk.begin({**inputs, **dict(chosen)}, fresh)
    loaded = load(model, **options)
    given = sequences(loaded.text, paths, chosen.length)
    sampled = _sampled(loaded, given, chosen, disk)
    report(f"training on {len(given)} sequences of the texts and {len(sampled)} of the model's own")
    pool = Pool(given, sampled, chosen.batch, chosen.text_share, chosen.seed)
    student = Student(loaded, base, chosen, None if start is None else Path(start))
    trainer = Trainer(student, pool, chosen, disk, compile, graph)
    if trainer.step:
        report(f"resuming after update {trainer.step}")
    done = trainer.train(seconds, report)
    if done:
        draw_training(out)
    return done


def _loading(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `load` out of these settings."""
    options = {name: settings.pop(name, None) for name in ("device", "dtype", "trust_remote_code")}
    return options | {
        "dtype": options["dtype"] or "float32",
        "trust_remote_code": bool(options["trust_remote_code"]),
    }


def draw_training(out: str | Path) -> None:
    """The training curve of a folder, as figures beside its tables."""
    import pandas as pd

    from headwise.charts.static import figure
    from headwise.charts.style import save
    from headwise.sparsify.evaluate import training_chart

    folder = Path(out) / "training"
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    if settings["dense"]:
        return
    curve, checks = (pd.read_csv(folder / name) for name in ("curve.csv", "checks.csv"))
    save(figure(training_chart(curve, checks, bound=settings["bound"])), folder, "training")


def evaluate(
    sparse: str | Path,
    held_out: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    control: str | Path | None = None,
    length: int = 256,
    limit: int | None = None,
    ioi: int = 500,
    **options: Any,
) -> dict[str, pd.DataFrame]:
    """Compare a sparse model with its dense base (and its control) on texts not trained on.

    Tables and figures are written into `out`; returns the tables "texts", "edges", "lengths" and "ioi". options:
    `device`, `dtype` (float32 by default) and `trust_remote_code`, as for `hw.load`.
    """
    from headwise.charts.static import figure
    from headwise.charts.style import save
    from headwise.sparsify.evaluate import compare, edge_chart, summary

    paths = [Path(path) for path in several(held_out)]
    if not paths:
        raise HeadwiseError(f"evaluation needs text that was not trained on; give {flag('held_out')} FILE")
    options = _loading(options)
    sparse_model = load(sparse, **options)
    gates = sparse_model.edge_gates
    if gates is None or gates.bias is None:
        raise HeadwiseError(f"{sparse} has no edge gates; give a folder that headwise sparsify made")
    models = {"dense": load(gates.base, **options), "sparse": sparse_model}
    if control is not None:
        models["control"] = load(control, **options)
    tables = compare(models, paths, length=length, limit=limit, ioi=ioi)
    folder = Path(out)
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        (folder / "summary.txt").write_text(summary(tables) + "\n", encoding="utf-8")
    save(figure(edge_chart(tables["edges"], tables["lengths"], title=sparse_model.name)), folder, "edges")
    return tables


def _sampled(loaded: Model, texts: Tensor, settings: SparsifySettings, disk: Disk) -> Tensor:
    """Sequences from the model itself; a training that is resumed reads those of its first session."""
    if not settings.sample:
        return torch.empty(0, settings.length, dtype=torch.int32)
    stored = disk.load("samples")
    if stored is not None:
        return stored[0]["ids"]
    with progress("Sampling from the model", settings.sample) as advance:
        ids = sample(loaded, texts, settings.sample, settings.length, settings.seed, advance)
    disk.save("samples", {"ids": ids})
    return ids


def _base_name(model: str) -> str:
    """How the finished folder finds its base again: a folder by its whole path, all else as it was named."""
    source = named_source(model)[1]
    path = user_path(source)
    return str(path.resolve()) if path.exists() else source


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise HeadwiseError(f"{path} cannot be read: {error.strerror}") from error
