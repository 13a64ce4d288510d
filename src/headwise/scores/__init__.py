"""Score methods: begin with `registry.py`, then `ablation.py`.

`gates/`, `adaptive/` and `probe/` are methods of several files; `compare.py` compares scores. May import: errors,
registry, stats, charts, heads, tasks, model, metrics.
"""

from headwise.scores.registry import Method, Setup, method, methods, register, score

__all__ = ["Method", "Setup", "method", "methods", "register", "score"]
