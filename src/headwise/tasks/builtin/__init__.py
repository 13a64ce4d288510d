"""The tasks that come with headwise, one file per family; word lists and texts beside them.

Begin with `ioi.py`, the shortest complete one. May import: `headwise.tasks` and below it.
"""
