"""What a sparse model kept and what it lost, on text it was not trained on.

    texts.csv    cross-entropy of the dense model, the sparse one and the control on every text, with intervals
                 and ratios
    edges.csv    part of causal edges open, by layer and head
    lengths.csv  how far open edges reach
    ioi.csv      accuracy at naming the indirect object

Texts are cut into sequences of one length; intervals come from resampling sequences, by the same ones for all
models. Edges are counted on the first text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.charts.chart import Axis, Chart, Line, Panel, Scale, curve
from headwise.charts.heatmap import head_panel
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.sparse.edge_gates import EdgeCounts
from headwise.progress import progress
from headwise.sparsify.data import sequences
from headwise.stats import mean_interval, ratio_interval, share_interval
from headwise.tables.frames import grid
from headwise.tasks import task

_LOGITS_AT_ONCE = 2**27


def compare(
    models: Mapping[str, Model],
    texts: Sequence[Path],
    *,
    length: int,
    limit: int | None,
    ioi: int,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Tables by name. `models`: "dense", "sparse" and, where there is one, "control".

    length: tokens of a sequence; limit: most sequences of a text; ioi: prompts of that task, 0 for none.
    """
    sparse = models["sparse"]
    counts = EdgeCounts(sparse.shape, length)
    losses: dict[str, dict[str, np.ndarray]] = {}
    with progress("Evaluating", len(texts) + bool(ioi)) as advance:
        for number, path in enumerate(texts):
            rows = sequences(sparse.text, [path], length, limit)
            losses[_text_name(path, losses)] = {
                name: losses_of(model, rows, counts if name == "sparse" and number == 0 else None)
                for name, model in models.items()
            }
            advance()
        tables = {"texts": _texts(losses, length), "edges": _edges(sparse, counts)}
        tables["lengths"] = _lengths(counts)
        if ioi:
            tables["ioi"] = _ioi(models, ioi, seed)
            advance()
    return tables


def _text_name(path: Path, taken: Mapping[str, object]) -> str:
    """A file called test.txt is named with its folder."""
    name = path.stem
    if name in ("test", "valid", "train"):
        name = f"{path.resolve().parent.name}-{name}"
    return name if name not in taken else str(path)


@torch.inference_mode()
def losses_of(model: Model, rows: Tensor, counts: EdgeCounts | None = None) -> np.ndarray:
    """Mean cross-entropy per token of every sequence `[N]` in nats; open edges are added to `counts`."""
    at_once = max(1, min(_LOGITS_AT_ONCE // (rows.shape[1] * model.vocabulary), 32))
    watcher = None if counts is None else counts.watcher(model.hooks.sites[0].layer)
    losses: list[Tensor] = []
    for part in rows.split(at_once):
        ids = part.long().to(model.device)
        with model.hooks.attached(watcher=watcher):
            logits = model.hf(input_ids=ids, use_cache=False).logits
        by_token = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        losses.append(by_token.view(len(ids), -1).mean(1).double().cpu())
    return torch.cat(losses).numpy()


def _texts(losses: Mapping[str, Mapping[str, np.ndarray]], length: int) -> pd.DataFrame:
    rows = []
    for text, by_model in losses.items():
        for name, values in by_model.items():
            lo, hi = mean_interval(values[:, None])
            row = {"text": text, "model": name, "cross_entropy": values.mean(), "lo": lo[0], "hi": hi[0]}
            for other in ("dense", "control"):
                if other in by_model:
                    ratio = ratio_interval(values[:, None], by_model[other])
                    row[f"over_{other}"] = float(ratio.value[0]) - 1
                    row[f"over_{other}_lo"] = float(ratio.lo[0]) - 1
                    row[f"over_{other}_hi"] = float(ratio.hi[0]) - 1
            rows.append({**row, "n": len(values), "length": length})
    return pd.DataFrame(rows)


def _edges(model: Model, counts: EdgeCounts) -> pd.DataFrame:
    heads = model.heads()
    table = pd.DataFrame([(head.layer, head.head) for head in heads], columns=["layer", "head"])
    opened = [int(counts.open_by_length[head].sum()) for head in heads]
    shares = [float(counts.by_head[head]) for head in heads]
    return table.assign(open=shares, edges=opened, possible=int(counts.possible.sum()))


def _lengths(counts: EdgeCounts) -> pd.DataFrame:
    heads = int(np.prod(counts.shape))
    opened = counts.open_by_length.sum((0, 1))
    return pd.DataFrame(
        {"length": np.arange(counts.length), "edges": opened, "possible": counts.possible * heads}
    )


def _ioi(models: Mapping[str, Model], n: int, seed: int) -> pd.DataFrame:
    rows = []
    for name, model in models.items():
        prompts = task("ioi", n, seed=seed, tokens=model.tokens)
        right = Engine(model, prompts, metric("accuracy")).full()
        lo, hi = share_interval(right[:, None])
        rows.append({"model": name, "accuracy": right.mean(), "lo": lo[0], "hi": hi[0], "n": len(right)})
    return pd.DataFrame(rows)


def summary(tables: Mapping[str, pd.DataFrame]) -> str:
    """The outcome in a few lines."""
    edges, lengths, texts = tables["edges"], tables["lengths"], tables["texts"]
    share = edges["edges"].sum() / edges["possible"].sum()
    distances = np.repeat(lengths["length"], lengths["edges"].astype(int))
    lines = [
        f"open edges: {100 * share:.2f} % of causal edges on {texts['text'].iloc[0]}, "
        f"{int((edges['edges'] == 0).sum())} of {len(edges)} heads have none; "
        f"half reach at most {int(np.median(distances)) if len(distances) else 0} tokens back"
    ]
    for text, part in texts.groupby("text", sort=False):
        rows = {str(row["model"]): row for row in part.to_dict("records")}
        shown = ", ".join(f"{name} {row['cross_entropy']:.4f}" for name, row in rows.items())
        over = [
            f"{100 * rows['sparse'][f'over_{other}']:+.2f} % over {other}"
            for other in ("dense", "control")
            if other in rows
        ]
        lines.append(f"cross-entropy on {text}: {shown} (sparse {', '.join(over)}; n = {part['n'].iloc[0]})")
    if "ioi" in tables:
        accuracy = tables["ioi"].set_index("model")["accuracy"]
        shown = ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracy.items())
        lines.append(f"IOI accuracy on {tables['ioi']['n'].iloc[0]} prompts: {shown}")
    return "\n".join(lines)


# ---- charts: the course of a training, and what became of the edges --------------------------------------


_BLUE, _ORANGE = "#1f77b4", "#ff7f0e"


def training_chart(training: pd.DataFrame, checks: pd.DataFrame, *, bound: float) -> Chart:
    """Share of open edges, excess over the dense model and multiplier against updates.

    Lines: noisy gates, a moving mean over updates. Dots: hard gates on held-back text, the model as it is used.
    """
    window = min(50, max(1, len(training) // 20))
    smooth = training.rolling(window, min_periods=1).mean().assign(step=training["step"])
    usual = smooth["excess"][len(training) // 10 :].quantile(0.99)
    top = np.nanmax([usual, checks["excess"][checks["step"] > 0].max(), bound])
    limits = (min(0.0, smooth["excess"].min(), checks["excess"].min()), 1.15 * top)
    smooth, checks = (table.assign(percent=100 * table["share"]) for table in (smooth, checks))
    noisy: dict[str, Any] = {"x": "step", "name": "noisy gates", "colour": _BLUE}
    hard: dict[str, Any] = {"x": "step", "name": "hard gates, held-back", "colour": _ORANGE, "dash": "none"}
    ends = (float(smooth["step"].min()), float(smooth["step"].max())) if len(smooth) else (0.0, 1.0)
    limit = Line(x=ends, y=[bound] * 2, name=f"bound {bound:g}", colour="#4d4d4d", dash="dash", width=1)
    price = (0, 1.05 * float(smooth["multiplier"].max()) or 1)
    axes = {
        "percent": Axis(label="Open edges (%)", scale="log"),
        "excess": Axis(label="Nats per token above dense", limits=limits),
        "multiplier": Axis(label="Multiplier λ", limits=price),
    }
    lines = {column: [curve(smooth, y=column, **noisy)] for column in axes}
    for column in ("percent", "excess"):
        lines[column].append(curve(checks, y=column, marker="circle", **hard))
    lines["excess"].append(limit)
    x = Axis(label="Update")
    return Chart(
        title="The course of the training",
        panels=[Panel(marks=lines[column], x=x, y=y) for column, y in axes.items()],
        size=(9.6, 3.3),
        columns=3,
        legend="bottom",
    )


def edge_chart(edges: pd.DataFrame, lengths: pd.DataFrame, *, title: str | None = None) -> Chart:
    """Left, the share of causal edges open in every head; right, how far open edges reach beside all edges."""
    shares = edges.assign(share=100 * edges["open"])
    values = grid(shares, "share")
    top = float(np.nanquantile(values, 0.98)) or 1.0
    above = bool(np.nanmax(values) > top)
    scale = Scale("viridis", 0, top, f"Open edges (%){', some beyond' if above else ''}", above=above)
    kinds = {"possible": ("all causal edges", "#999999"), "edges": ("open edges", _ORANGE)}
    reach = (lengths[[*kinds]] / lengths[[*kinds]].sum().clip(lower=1)).cumsum()
    reach["tokens"] = lengths["length"] + 1
    lines = [curve(reach, "tokens", kind, name=name, colour=c) for kind, (name, c) in kinds.items()]
    ticks = [2**power for power in range(0, int(np.log2(max(2, len(lengths)))) + 1)]
    x = Axis(label="Edge length (tokens back, + 1)", scale="log", ticks=ticks, names=[*map(str, ticks)])
    y = Axis(label="Part of edges up to this length", limits=(0, 1.02))
    return Chart(
        title=title or "Which edges are open",
        heading=title or "",
        panels=[
            head_panel(shares, scale, of="share", most=(10, 10)),
            Panel(marks=lines, x=x, y=y, legend="upper left"),
        ],
        size=(9.2, 4.2),
        columns=2,
        widths=(1, 1.1),
        height=340,
    )
