"""Does the model fail when the important heads go, and not when random ones go? Begin with `study.py`."""
