"""Does a head help, interfere, or do nothing? Begin with `study.py`."""
