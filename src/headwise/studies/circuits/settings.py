"""What the study `circuits` can be told: models alone or in pairs, tasks, orders, and how far to look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headwise.constraints import Constraints, NotEmpty, Number, OneOf, Passes, check_settings
from headwise.errors import HeadwiseError
from headwise.scores.registry import check_method_options
from headwise.studies.settings.resolve import METHOD, METRIC, REFERENCE, TASKS, StudySettings
from headwise.sweeps.curve import check_threshold
from headwise.sweeps.sweep import ACTIONS, CONTROLS, DRAWS

ROLES = ("dense", "sparse", "control")
RANKINGS = ("signed", "absolute", "hinders")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Models whose curves are compared."""

    dense: str
    sparse: str | None = None
    """Without it the dense model is shown alone."""
    control: str | None = None
    """A dense model trained as the sparse one was: what the training alone does."""
    tasks: tuple[str, ...] = ()
    """By default the study's."""

    CONSTRAINTS: ClassVar[Constraints] = {"tasks": TASKS}

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def members(self) -> dict[str, str]:
        """Role and model."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


@dataclass(frozen=True, kw_only=True)
class CircuitsSettings(StudySettings):
    """Settings of the study `circuits`."""

    REPLACES: ClassVar[dict[str, str]] = {"models": "pairs"}
    """Models given by flag take the place of a file's pairs."""
    CONSTRAINTS: ClassVar[Constraints] = {
        "tasks": (NotEmpty("task"), TASKS),
        "orders": (NotEmpty("order"), METHOD),
        "by": (NotEmpty("ranking"), OneOf("ranking", lambda: RANKINGS)),
        "action": OneOf("action", lambda: ACTIONS),
        "threshold": Passes(check_threshold),
        "n": Number(least=4),  # two halves, each with an interval
        "metric": METRIC,
        "reference": REFERENCE,
        "k": Number(least=0),
        "points": Number(least=3),
        "controls": OneOf("control", lambda: CONTROLS),
        "draws": Number(least=1),
        "maps": Number(least=0),
    }

    models: tuple[str, ...] = ()
    """One model; or a pair, the dense one first; or a pair and its dense control. By default smollm2."""
    pairs: tuple[Pair, ...] = ()
    """Several pairs, each with `dense`, `sparse`, `control`, `tasks`; instead of `models`."""
    tasks: tuple[str, ...] = ("greater_than", "ioi", "docstring", "ioi_long")
    """Built-in names, files, or hub:owner/name."""
    orders: tuple[str, ...] = ("integrated",)
    """Score methods that rank the heads."""
    by: tuple[str, ...] = ("signed",)
    """How a signed score ranks: `signed` (helps most first), `absolute`, `hinders`."""
    action: str = "keep"
    """`keep` only the first k heads, or `mask` them."""
    threshold: float = 0.9
    """The explained effect at which heads are counted."""
    n: int = 40
    """Examples per task: one half ranks the heads, the other tests them."""
    metric: str | None = None
    """By default each task's own."""
    reference: str | None = None
    """What a head that is not kept is replaced by; by default `patch` where there are counterfactuals, else `mean`."""
    k: tuple[int, ...] = ()
    """Numbers of heads to measure; by default at most `points`, chosen near the threshold."""
    points: int = 21
    """Most numbers of heads that are measured along a curve."""
    controls: tuple[str, ...] = CONTROLS
    """Heads to compare with: `random`, and `random_layer`, as many from each layer as the order's first k have there;
    never one of the order's first k."""
    draws: int = DRAWS
    """Of each control."""
    maps: int = 4
    """Heads of each order whose attention is drawn."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the score methods."""

    def __post_init__(self) -> None:
        if self.pairs:
            members = tuple(dict.fromkeys(name for pair in self.pairs for name in pair.members.values()))
            if self.models and self.models != members:
                raise HeadwiseError(
                    f"models are {', '.join(self.models)} and pairs name {', '.join(members)}; give models or pairs"
                )
            object.__setattr__(self, "models", members)
            self._check()
            return
        models = self.models or ("smollm2",)
        if len(models) > len(ROLES):
            raise HeadwiseError(
                f"{len(models)} models are given; two are a pair (dense, sparse), a third is its dense control, and "
                "more are set as pairs: [{dense: …, sparse: …}, …]"
            )
        object.__setattr__(self, "models", models)
        named: dict[str, Any] = dict(zip(ROLES, models, strict=False))
        object.__setattr__(self, "pairs", (Pair(**named),))
        self._check()

    def _check(self) -> None:
        """A mistake should end the run before it begins."""
        super().__post_init__()
        check_method_options(self.method_options, self.orders)
        for pair in self.pairs:
            names = list(pair.members.values())
            if len(set(names)) < len(names):
                raise HeadwiseError(f"a pair names {names[0]!r} twice; its models must differ")
        panels = [(number, task) for number, _, task in self.panels()]
        if len(set(panels)) < len(panels):
            raise HeadwiseError("a task is named twice; expected each task once per pair")

    def panels(self) -> Iterator[tuple[int, Pair, str]]:
        """(number of the pair, pair, task) of all that is compared."""
        for number, pair in enumerate(self.pairs):
            for task in pair.tasks or self.tasks:
                yield number, pair, task

    def curves(self) -> list[tuple[str, str]]:
        """(model, task), each once."""
        return list(
            dict.fromkeys((m, task) for _, pair, task in self.panels() for m in pair.members.values())
        )
