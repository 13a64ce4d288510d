"""What makes a backward pass small: packed rows (`packing.py`), attention per row (`row_attention.py`),
recomputation (`remembered.py`), log p in parts (`target_logprobs.py`). Begin with `packing.py`.
May import: errors, `model.tokens`, `model.sites`, `model.forward`.
"""
