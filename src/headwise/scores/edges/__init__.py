"""Scores of direct edges between components (`hw.edges`): begin with `score.py`.

`registry.py` has the methods known by name; `exact.py` and `gradient.py` are those that ship.
May import: errors, registry, stats, heads, tasks, model, metrics, `scores.registry`.
"""

from headwise.scores.edges.registry import EdgeMethod, EdgeSetup, edge_methods, register
from headwise.scores.edges.score import check_edges, edge_cost, edges

__all__ = ["EdgeMethod", "EdgeSetup", "check_edges", "edge_cost", "edge_methods", "edges", "register"]
