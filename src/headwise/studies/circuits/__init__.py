"""How few heads explain a behaviour, and does sparse attention need fewer? Begin with `study.py`."""
