"""Which heads changed between two models? Begin with `study.py`."""
