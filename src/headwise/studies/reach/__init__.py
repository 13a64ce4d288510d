"""Which heads need to see far, and how much of the KV cache can go? `kept.py` has the curves; begin with `study.py`."""
