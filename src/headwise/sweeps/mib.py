"""The circuit metrics of the benchmark MIB on its own fractions of components, and its file of importances.

MIB (Mueller et al. 2025, arXiv 2504.13151, repository MIB-circuit-track) keeps the first components of a ranking, takes
everything else from the counterfactual prompt, and measures f = (m(kept) − m(none)) / (m(all) − m(none)). CPR is the
area under f for the signed ranking, CMD the area of |1 − f| for the ranking by absolute value, both by the trapezoid
rule over ten fixed fractions of the components. Components are the heads, the MLPs and the embeddings (`input`).

E examples, F fractions, B resamples, L layers, H heads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.files import replacing
from headwise.heads import COMPONENTS, Head, Scores, keep_gates, ones
from headwise.metrics import metric as metric_named
from headwise.model.forward.run import Pass
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.names import INPUT, MLP
from headwise.progress import Progress, reporting
from headwise.sweeps.curve import Sweep
from headwise.sweeps.explained import Estimate
from headwise.tasks.opening import TaskLike, as_task

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of the scored components that are kept; there is no point at 0."""
_RANKING = {"cpr": "signed", "cmd": "absolute"}
"""The ranking behind each area."""


@dataclass(frozen=True)
class Mib:
    """CPR and CMD of one ranking, with the curves behind them."""

    signed: Sweep
    """The metric with the first components of the signed ranking; k: as many as each fraction says."""
    absolute: Sweep
    """The same of the ranking by absolute value."""
    scores: Scores
    layout: dict[str, Any] = field(default_factory=dict)
    """`cfg` of the file of importances: layers, heads, width, and whether attention and MLP run side by side."""

    @property
    def k(self) -> np.ndarray:
        """`[F]`: components that are kept at each fraction, beside those without a score."""
        return self.signed.k

    @property
    def components(self) -> int:
        """Scored components; the fractions are of them."""
        return len(self.signed.order)

    def faithfulness(self, ranking: str = "signed") -> np.ndarray:
        """f at each fraction `[F]`: 0 is the counterfactual run, 1 the whole model."""
        return self._curve(ranking).shares

    def _curve(self, ranking: str) -> Sweep:
        return {"signed": self.signed, "absolute": self.absolute}[ranking]

    @property
    def cpr(self) -> Estimate:
        """Area under f, signed ranking: more is better; above .999 where a part does better than the whole model."""
        return self._estimate("cpr")

    @property
    def cmd(self) -> Estimate:
        """Area of |1 − f|, absolute ranking: 0 is best."""
        return self._estimate("cmd")

    def _estimate(self, which: str) -> Estimate:
        curve = self._curve(_RANKING[which])
        interval = stats.resampled_interval(self.resampled(which), curve.n, groups=curve.groups)
        return Estimate(float(_area(curve.shares, which)), *interval)

    def resampled(self, which: str) -> np.ndarray:
        """CPR or CMD (`which`) in every resample of the examples `[B]`; results over the same examples are paired."""
        curve = self._curve(_RANKING[which])
        shares = stats.resampled_ratio(curve.gains.T, curve.effects, groups=curve.groups, seed=curve.seed)
        return _area(shares, which)

    def minus(self, other: Mib) -> dict[str, Estimate]:
        """`cpr` and `cmd` of this ranking minus those of another on the same examples, paired, with intervals."""
        mine, others = self.signed, other.signed
        if mine.n != others.n or mine.seed != others.seed:
            raise HeadwiseError(
                f"a paired difference needs the same examples: {mine.n} and {others.n} are given"
            )
        found = {}
        for which in _RANKING:
            change = self.resampled(which) - other.resampled(which)
            ends = stats.resampled_interval(change, mine.n, groups=mine.groups)
            found[which] = Estimate(getattr(self, which).value - getattr(other, which).value, *ends)
        return found

    def table(self) -> pd.DataFrame:
        """One row per fraction: k, and f by the signed and by the absolute ranking."""
        shares = {"signed": self.signed.shares, "absolute": self.absolute.shares}
        return pd.DataFrame({"fraction": FRACTIONS, "k": self.k, **shares})

    def save_importances(self, path: str | Path) -> None:
        """Write the scores as MIB's evaluator and leaderboard read them: `importances.json` at node level."""
        with replacing(Path(path)) as partial:
            partial.write_text(json.dumps(importances(self.scores, self.layout)), encoding="utf-8")

    def __repr__(self) -> str:
        cpr, cmd = self.cpr, self.cmd
        return (
            f"Mib({self.scores.method} on {self.scores.task}, {self.scores.model}, "
            f"counterfactual patching, {self.components} components, "
            f"n = {self.signed.n}: CPR {cpr.value:.3f} [{cpr.lo:.3f}, {cpr.hi:.3f}], "
            f"CMD {cmd.value:.3f} [{cmd.lo:.3f}, {cmd.hi:.3f}])"
        )


def _area(shares: np.ndarray, which: str) -> np.ndarray:
    """The area over the fractions of f, or of |1 − f|; `shares[..., F]`."""
    heights = shares if which == "cpr" else np.abs(1 - shares)
    area: np.ndarray = np.trapezoid(heights, FRACTIONS, axis=-1)
    return area


def mib(
    model: Model,
    task: TaskLike,
    scores: Scores,
    *,
    metric: str | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    progress: Progress = True,
) -> Mib:
    """CPR and CMD of a ranking by MIB's node-level protocol, each with an interval over examples.

    task: every example needs a counterfactual; use examples that the scores were not found on.
    scores: of heads, MLPs and the input (`hw.score(…, components=["heads", "mlps", "input"])`). A component without a
        score is always kept, as in MIB; with scores of heads alone, MLPs and the input are.
    metric: by default the task's own; MIB uses `logit_diff`.

    Half of the area is the single step from 50 % to 100 % of the components, and the first fractions of a small model
    keep nothing: `hw.sweep` shows what happens with few components.

    >>> parts = ["heads", "mlps", "input"]                                                        # doctest: +SKIP
    >>> scores = hw.score(model, found, "integrated", reference="patch", components=parts)        # doctest: +SKIP
    >>> hw.sweep.mib(model, tested, scores).cmd                                                   # doctest: +SKIP
    """
    task = as_task(task, model, {})
    every = model.layout(COMPONENTS)
    scored = [one for one in scores.heads() if np.isfinite(scores[one])]
    every.check(scored, model.name)
    unscored = [one for one in every.listed() if one not in set(scored)]
    k = np.array([int(fraction * len(scored)) for fraction in FRACTIONS])
    orders = {by: [one for one in scores.order(by) if np.isfinite(scores[one])] for by in _RANKING.values()}
    kept = [[*order[:number], *unscored] for order in orders.values() for number in k]
    gates = np.stack([*(keep_gates(heads, every) for heads in kept), ones(every)])
    with reporting(f"MIB on {task.name}", len(gates) * len(task), progress) as advance:
        options: dict[str, Any] = {
            "reference": "patch",
            "components": COMPONENTS,
            "batch_tokens": batch_tokens,
        }
        engine = Engine(
            model, task, metric_named(metric or task.metric), advance=advance, seed=seed, **options
        )
        measured = engine.measure(gates, baseline=np.zeros(every.shape))
    none = measured.full[-1]
    values = none + (measured.values - measured.full)  # against the baseline in the same batch
    by_ranking = values[:-1].reshape(len(orders), len(k), len(task))
    curves = {
        ranking: Sweep.of(
            engine,
            k=k,
            values=by_ranking[number],
            none=none,
            full=values[-1],
            order=order,
            series=scores.method,
            action="keep",
            reference="patch",
            total=len(every.listed()),
            by=ranking,
            seed=seed,
        )
        for number, (ranking, order) in enumerate(orders.items())
    }
    return Mib(**curves, scores=scores, layout=mib_layout(model))


# ---- the file of importances -------------------------------------------------------------------------


def importances(scores: Scores, layout: dict[str, Any]) -> dict[str, Any]:
    """The scores as MIB's `importances.json`: `cfg`, `nodes` with a score each, and no edges.

    A component without a score has none in the file either: MIB's evaluator then always keeps it. NaN is no JSON.
    """
    layers, heads = layout["n_layers"], layout["n_heads"]
    every = [Head(0, INPUT), *(Head(layer, head) for layer in range(layers) for head in (*range(heads), MLP))]
    scored = {one: scores[one] for one in scores.heads() if np.isfinite(scores[one])}
    nodes: dict[str, Any] = {
        _node(one): {"in_graph": False} | ({"score": scored[one]} if one in scored else {}) for one in every
    }
    return {"cfg": layout, "nodes": nodes | {"logits": {"in_graph": True}}, "edges": {}}


def _node(component: Head) -> str:
    """MIB's name of a component.

    >>> _node(Head(3, 1)), _node(Head(3, -1)), _node(Head(0, -2))
    ('a3.h1', 'm3', 'input')
    """
    if component.head == INPUT:
        return "input"
    return f"m{component.layer}" if component.head == MLP else f"a{component.layer}.h{component.head}"


def mib_layout(model: Model) -> dict[str, Any]:
    """`cfg` of the file: layers, heads, whether attention and MLP of a block run side by side, width of the stream."""
    layers, heads = model.shape
    if not model.exists.all():
        raise HeadwiseError(
            f"{model.name} has layers with fewer than {heads} heads, which MIB's file of importances cannot describe"
        )
    plain, changed = (_mlp_output(model, gate) for gate in (1.0, 0.0))
    parallel = bool(torch.equal(plain, changed))
    width = int(plain.shape[-1])
    return {"n_layers": layers, "n_heads": heads, "parallel_attn_mlp": parallel, "d_model": width}


def _mlp_output(model: Model, gate: float) -> torch.Tensor:
    """What the MLP of the first layer writes when that layer's heads have this gate."""
    seen: list[torch.Tensor] = []
    (module,) = model.modules([Head(0, MLP)]).values()

    ids = torch.tensor([model.tokens("The cat sat on the mat")], device=model.device)
    with torch.no_grad():
        model.run(
            Pass(
                ids=ids,
                scored=torch.zeros(1, 1, dtype=torch.long),
                heads=lambda layer, z: z * gate if layer == 0 else z,
                modules={module: lambda output: seen.append(output.clone())},
            )
        )
    return seen[0]
