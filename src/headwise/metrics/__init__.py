"""A number per example: from logits (`logits.py`), or from generated text (`text/`). Begin with `registry.py`.

May import: errors, registry, model.
"""

from headwise.metrics.registry import Metric, metric, metrics, register
from headwise.metrics.text.registry import TextMetric, register_text, text_metric, text_metrics

__all__ = [
    "Metric",
    "TextMetric",
    "metric",
    "metrics",
    "register",
    "register_text",
    "text_metric",
    "text_metrics",
]
