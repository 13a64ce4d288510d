"""Sparse attention: gates on attention pairs (`edge_gates.py`), how many are open (`open_edges.py`), and the folder
that a trained sparse model is (`adapter.py`). May import: errors, `model.sites`.
"""
