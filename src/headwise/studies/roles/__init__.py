"""Does a head help, hinder, or do nothing? Begin with `study.py`."""
