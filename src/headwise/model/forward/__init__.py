"""One forward pass: begin with `run.py` (`Pass` and `run`, what is changed in a model and in which order).

`gate.py` is where a head's gate is applied; `schedule.py` decides what runs together, and in halves where it does not
fit; `decode.py` goes on from a KV cache; `kernels.py` makes the same pass faster on an accelerator, `products.py` on a
CPU. May import: errors, `model.sites`.
"""
