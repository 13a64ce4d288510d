"""Text to token ids: begin with `encode.py` (examples to rows and scored positions).

`text.py` is the tokenizer, `chat.py` renders chat templates in a process of their own, `spans.py` says which tokens
were inserted. May import: errors, tasks.
"""
