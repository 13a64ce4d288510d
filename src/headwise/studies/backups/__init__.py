"""Which heads stand in for one another? Begin with `study.py`."""
