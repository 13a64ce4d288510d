"""Attention rows, columns, profiles and maps of chosen heads. Begin with `attention.py`.

May import: errors, heads, charts, `model.tokens`, `model.sites`, `model.forward`, `model.sparse`.
"""
