"""What do inserted tokens do to a model's answers and to a head's attention? Begin with `study.py`."""
