"""Settings of the study `circuits`: models alone or in pairs, tasks, orders, references, and how far to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.model.sites.probe import accelerated
from headwise.scores.registry import check_methods
from headwise.settings import Count, Settings, Several, Text, not_empty, one_of, passes
from headwise.studies.settings import shared
from headwise.sweeps.curve import check_threshold
from headwise.sweeps.plan import usual_options
from headwise.sweeps.sweep import ACTIONS, CONTROL_POINTS, CONTROLS, DRAWS

ROLES = ("dense", "sparse", "control")
REFITS, REFITS_ON_CPU = 4, 2
TASKS = ("greater_than", "ioi", "docstring", "ioi_long")
ON_CPU = 2
"""How many of these are the default without an accelerator."""
QUICK_TASK = "ioi"
"""The task with `quick`: six examples of greater_than have no significant effect under mean ablation."""
ORDERS = ("integrated", "nested")
EXACT = "ablation"
"""The order that is one of the defaults only on an accelerator: a forward row for each head and example."""
QUICK_CONTROL_POINTS = 5
"""Numbers of heads at which controls are measured with `quick`."""
Ranking = Annotated[Text, one_of("ranking", lambda: shared.RANKINGS)]


class Pair(Settings):
    """Models whose curves are compared."""

    dense: Text
    sparse: Text | None = None
    """Sparse model; without it the dense model is shown alone."""
    control: Text | None = None
    """Dense control: trained like the sparse model, without sparsity, to separate the effect of the training."""
    tasks: Several[shared.TaskName] = ()
    """Tasks of this pair; by default those of the study."""

    @property
    def members(self) -> dict[str, str]:
        """Role and model."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


class CircuitsSettings(shared.TaskSettings):
    REPLACES: ClassVar[dict[str, str]] = {"models": "pairs"}
    """Models given by flag take the place of a file's pairs."""
    QUICK: ClassVar[dict[str, Any]] = {"n": 12, "points": 11, "draws": DRAWS}

    models: shared.Models = ()
    """One model; or a pair, the dense one first; or a pair and its dense control. By default smollm2."""
    pairs: Several[Pair] = ()
    """Several pairs, each with `dense`, `sparse`, `control`, `tasks`; instead of `models`."""
    tasks: shared.TaskNames = ()
    """Built-in names, files, or hub:owner/name; by default greater_than and ioi, on an accelerator also docstring and
    ioi_long, with `quick` ioi alone."""
    orders: Annotated[Several[shared.MethodName], not_empty("order")] = ()
    """Score methods that rank the heads; by default integrated and nested, on an accelerator also ablation. The order
    with the smallest circuit on the finding half is the one reported."""
    by: Annotated[Several[Ranking], not_empty("ranking")] = ("signed",)
    """How a signed score ranks heads: `signed` (most helpful first), `absolute`, `hinders` (most harmful first)."""
    action: Annotated[Text, one_of("action", lambda: ACTIONS)] = "keep"
    """`keep` only the top k heads, or `mask` them."""
    threshold: Annotated[float, passes(check_threshold)] = 0.9
    """Explained effect (faithfulness) at which the circuit size is read."""
    n: Annotated[int, Field(ge=4)] = 40  # two halves, each with an interval
    """Examples per task: one half ranks the heads, the other tests them."""
    references: Several[shared.ReferenceName] = ()
    """Ablation types, one row of panels each; by default `mean`, and `patch` if every example has a counterfactual."""
    k: Several[NonNegativeInt] = ()
    """Numbers of heads to measure; by default at most `points` values, denser near the threshold."""
    points: Annotated[int, Field(ge=3)] = 21
    """Maximum number of points of a curve."""
    controls: Several[Annotated[Text, one_of("control", lambda: CONTROLS)]] = CONTROLS
    """Control sets: `random`, and `random_layer` (as many heads per layer as the top k have there). They contain none
    of the top k heads."""
    draws: Count = DRAWS
    """Random draws of each control."""
    refits: NonNegativeInt | None = None
    """How often a learned ranking is fitted again, with another seed on other halves of the examples, to show how far
    the circuit size depends on the fit; by default 4, without an accelerator 2, with `quick` 0."""
    maps: NonNegativeInt = 4
    """Number of top heads of each order whose attention maps are drawn."""
    cards: NonNegativeInt = 2
    """Number of heads of each task and order that get a card (head page) in the report: those with the largest scores.
    0 for none."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the score methods."""

    @model_validator(mode="after")
    def _models_and_pairs(self) -> Self:
        """Models say which pairs there are, or the other way round; a mistake ends the run before it begins."""
        models, pairs = self.models or ("smollm2",), self.pairs
        if pairs:
            models = tuple(dict.fromkeys(name for pair in pairs for name in pair.members.values()))
            if self.models and self.models != models:
                raise HeadwiseError(
                    f"models are {', '.join(self.models)} and pairs name {', '.join(models)}; give models or pairs"
                )
        elif len(models) > len(ROLES):
            raise HeadwiseError(
                f"{len(models)} models are given; two are a pair (dense, sparse), a third is its dense control, and "
                "more are set as pairs: [{dense: …, sparse: …}, …]"
            )
        else:
            named: dict[str, Any] = dict(zip(ROLES, models, strict=False))
            pairs = (Pair(**named),)
        self.__dict__.update(models=models, pairs=pairs, **self._defaults())
        self._check()
        return self

    def _defaults(self) -> dict[str, Any]:
        """Tasks, orders and their options; where they are not given, what this machine computes in minutes."""
        fast = accelerated(self.device)
        usual_orders = (*ORDERS, EXACT) if fast and not self.quick else ORDERS
        tasks = (QUICK_TASK,) if self.quick else TASKS if fast else TASKS[:ON_CPU]
        orders = self.orders or usual_orders
        options: dict[str, Any] = {}  # none, as the run folder of an accelerator has it
        if self.method_options or "method_options" not in self.model_fields_set:
            options = usual_options(orders, self.method_options, fast=fast, quick=self.quick)
        refits = self.refits
        if refits is None:
            refits = 0 if self.quick else REFITS if fast else REFITS_ON_CPU
        return {
            "orders": orders,
            "tasks": self.tasks or tasks,
            "method_options": options,
            "refits": refits,
        }

    def _check(self) -> None:
        check_methods(self.orders, self.method_options, self.metric)
        for pair in self.pairs:
            names = list(pair.members.values())
            if len(set(names)) < len(names):
                raise HeadwiseError(f"a pair names {names[0]!r} twice; its models must differ")
        panels = [(number, task) for number, _, task in self.panels()]
        if len(set(panels)) < len(panels):
            raise HeadwiseError("a task is named twice; expected each task once per pair")
        if len(set(self.references)) < len(self.references):
            raise HeadwiseError(
                f"references are {', '.join(self.references)}; expected each ablation type once"
            )

    def sources(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield from ((task, self.task_options) for _, _, task in self.panels())

    def panels(self) -> Iterator[tuple[int, Pair, str]]:
        """(number of the pair, pair, task) of all that is compared."""
        for number, pair in enumerate(self.pairs):
            for task in pair.tasks or self.tasks:
                yield number, pair, task

    def curves(self) -> list[tuple[str, str]]:
        """(model, task), each once."""
        panels = [(pair.members.values(), task) for _, pair, task in self.panels()]
        return list(dict.fromkeys((model, task) for models, task in panels for model in models))

    @property
    def control_options(self) -> dict[str, Any]:
        """Options of `sweep` for a curve with controls."""
        points = QUICK_CONTROL_POINTS if self.quick else CONTROL_POINTS
        return {"controls": self.controls, "draws": self.draws, "control_points": points}

    def quickened(self) -> Self:
        return super().quickened().replaced(controls=self.controls[:1])
