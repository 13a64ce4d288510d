"""Attention rows, columns, profiles and maps of chosen heads. Begin with `attention.py`; `blocks.py` runs the model,
`weights.py` recomputes the weights of one call.

May import: errors, heads, charts, `model.tokens`, `model.sites`, `model.forward`, `model.sparse`.
"""
