"""Nested masks: a learned order of heads whose first k explain the behaviour at every k.

Begin with `nested.py`, the score method. `problem.py` has the examples, what is held back, the explained effect and
the soft and hard top-k masks, `fit.py` the training and what it minimises.
May import: what `scores` may, and `scores.gates`.
"""
