"""`hw.register`: make a task, metric, reference, score method, edge method or study known by name, as a decorator.

    @hw.register.metric("first_logprob", needs="target", about="log p of the first token")
    def first_logprob(scored): ...

After that it has its name everywhere: in Python, on the command line, in study files and in the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from headwise.metrics.registry import register as metric
from headwise.metrics.text.registry import register_text as text_metric
from headwise.model.measure.references.registry import register as reference
from headwise.scores.edges.registry import register as edge_method
from headwise.scores.registry import register as method
from headwise.studies.base import Study
from headwise.studies.base import register as _register_study
from headwise.tasks.registry import register as task
from headwise.tasks.registry import register_list as task_list

__all__ = ["edge_method", "method", "metric", "reference", "study", "task", "task_list", "text_metric"]


@overload
def study(definition: Study) -> Study: ...
@overload
def study(definition: Callable[[], Study]) -> Callable[[], Study]: ...
def study(definition: Study | Callable[[], Study]) -> Study | Callable[[], Study]:
    """Make a study known under its name: a `Study`, or as a decorator a function without arguments that returns one."""
    _register_study(definition if isinstance(definition, Study) else definition())
    return definition
