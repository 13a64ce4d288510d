"""`hw.register`: make a task, metric, reference, score method, edge method or study known by name, as a decorator.

    @hw.register.metric("first_logprob", needs="target", about="log p of the first token")
    def first_logprob(scored): ...

After that it has its name everywhere: in Python, on the command line, in study files and in the report.
"""

from __future__ import annotations

from headwise.metrics.logits import register as metric
from headwise.metrics.text import register_text as text_metric
from headwise.model.measure.references import register as reference
from headwise.scores.edges.score import register as edge_method
from headwise.scores.registry import register as method
from headwise.studies.base import study
from headwise.tasks.registry import register as task
from headwise.tasks.registry import register_list as task_list

__all__ = ["edge_method", "method", "metric", "reference", "study", "task", "task_list", "text_metric"]
