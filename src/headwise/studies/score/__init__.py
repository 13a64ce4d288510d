"""Which heads matter? Scores of one method on one task. Begin with `study.py`."""
