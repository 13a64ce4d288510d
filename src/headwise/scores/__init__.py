"""Score methods: begin with `run.py` (`hw.score`) and `registry.py`, then `ablation.py`.

`gates/`, `nested/` and `adaptive/` are methods of several files; `compare.py` compares scores. May import: errors,
registry, stats, tables, heads, tasks, model, metrics; charts in `plot`.
"""

from headwise.scores.registry import Method, Setup, method, methods, register
from headwise.scores.run import score
