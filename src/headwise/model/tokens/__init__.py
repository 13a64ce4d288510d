"""Text to token ids: `text.py` (the tokenizer), `encode.py` (examples to rows and scored positions), `spans.py`
(which tokens were inserted). Begin with `encode.py`. May import: errors, tasks.
"""
