"""Generation with ablated heads: begin with `generate.py`; `prompts.py` (chat templates, token ids).

May import: errors, heads, `model.tokens`, `model.forward`, `model.measure`.
"""
