"""The ablation types of one model and task, in the order of the figure's rows."""

from __future__ import annotations

from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context
from headwise.studies.halves import halves


def references(context: Context[CircuitsSettings], model: str, task: str) -> tuple[str, ...]:
    """Those of the settings; by default `mean`, and `patch` where every example has a counterfactual."""
    if context.settings.references:
        return context.settings.references
    examples = context.once(halves, model, task).whole
    return ("mean", "patch") if all(one.counterfactual is not None for one in examples) else ("mean",)
