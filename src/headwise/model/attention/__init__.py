"""Attention rows, columns, profiles and maps of chosen heads. Begin with `attention.py`; `weights.py` runs the model
and recomputes the weights.

May import: errors, heads, charts, `model.tokens`, `model.sites`, `model.forward`, `model.sparse`.
"""
