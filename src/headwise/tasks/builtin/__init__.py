"""The tasks that come with headwise, one file per family, or per group of related ones (`arithmetic.py`, `ioi.py`).

Word lists and texts are plain files in `data/`, which `word_lists.py` reads. Begin with `induction.py`, the
shortest complete one. May import: `headwise.tasks` and below it.
"""
