"""Does the model fail when its important heads are ablated, and not when random heads are? Begin with `study.py`."""
