"""The ablation types of one model and task, in the order of the figure's rows."""

from __future__ import annotations

from headwise.model.measure.references.registry import default_reference
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context
from headwise.studies.halves import halves


def references(context: Context[CircuitsSettings], model: str, task: str) -> tuple[str, ...]:
    """Those of the settings; by default `mean`, and `patch` where every example has a counterfactual."""
    by_default = default_reference(context.once(halves, model, task).whole)
    return context.settings.references or (("mean", "patch") if by_default == "patch" else ("mean",))
