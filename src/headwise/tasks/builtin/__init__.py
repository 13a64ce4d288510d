"""The tasks that come with headwise, one file per family.

Word lists and texts are plain files in `data/`, which `word_lists.py` reads. Begin with `ioi.py`, the shortest
complete one. May import: `headwise.tasks` and below it.
"""
