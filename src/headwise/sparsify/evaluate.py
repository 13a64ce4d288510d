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
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.sparse.open_edges import EdgeCounts
from headwise.progress import progress
from headwise.sparsify.data import sequences
from headwise.stats import mean_interval, ratio_interval, share_interval
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
    watcher = counts and counts.watcher(model.hooks.sites[0].layer)
    losses: list[Tensor] = []
    for part in rows.split(at_once):
        ids = part.long().to(model.device)
        with model.hooks.watching(watcher) if watcher else nullcontext():
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
