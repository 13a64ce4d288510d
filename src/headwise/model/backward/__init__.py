"""What makes a backward pass small: rows packed into one sequence (`packing.py`), log p in parts of the
vocabulary (`target_logprobs.py`).

Begin with `packing.py`. May import: errors, `model.tokens`, `model.sites`, `model.forward`.
"""
