"""Sparse attention: gates on attention pairs and how many are open (`edge_gates.py`), and the folder that a trained
sparse model is (`adapter.py`). May import: errors, `model.sites`.
"""
