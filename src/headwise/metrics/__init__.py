"""A number per example: from logits (`logits.py`), or from generated text (`text.py`, `comet.py`). `leading_space.py`
notices answers that lack a space. May import: errors, registry, model.
"""

from headwise.metrics.logits import Metric, metric, metrics, register
from headwise.metrics.text import TextMetric, register_text, text_metric, text_metrics
