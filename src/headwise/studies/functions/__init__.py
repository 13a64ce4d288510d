"""Which heads serve which ability? Begin with `study.py`."""
