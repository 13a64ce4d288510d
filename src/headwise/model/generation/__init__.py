"""Generation with ablated heads: begin with `generate.py`; `decode.py` is one growing batch with its KV cache.

May import: errors, heads, `model.tokens`, `model.forward`, `model.measure.references`.
"""
