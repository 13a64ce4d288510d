"""Generation with ablated heads: begin with `generate.py`; `prompts.py` (chat templates, token ids, sampling),
`streaming.py` (a KV cache in which most heads store little).

May import: errors, heads, `model.tokens`, `model.forward`, `model.measure`.
"""
