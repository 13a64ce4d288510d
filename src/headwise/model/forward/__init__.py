"""One forward pass under gates, and what it leaves out.

`gating.py` is the formula; `prefix.py` enters the decoder midway and shares rows, `unembed.py` computes logits at
chosen positions, `schedule.py` decides what runs together, `memory.py` what happens when it does not fit;
`products.py`, `fused.py` and `replay.py` make the same pass faster. May import: errors, `model.sites`.
"""
