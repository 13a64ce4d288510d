"""Scores of direct edges between components (`hw.edges`): begin with `score.py`.

`methods.py` has the methods that ship.
May import: errors, registry, stats, heads, tasks, model, metrics, `scores.registry`.
"""

from headwise.scores.edges.score import (
    EdgeMethod,
    EdgeSetup,
    check_edges,
    edge_cost,
    edge_methods,
    edges,
    register,
)
