"""Which heads does a head read from, through Q, K or V? Begin with `study.py`."""
