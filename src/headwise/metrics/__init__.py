"""Numbers per example, from logits or from generated text."""

from headwise.metrics.registry import Metric, metric, metrics, register

__all__ = ["Metric", "metric", "metrics", "register"]
