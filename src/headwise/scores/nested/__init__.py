"""Nested masks: a learned order of heads whose first k explain the behaviour at every k.

Begin with `nested.py`, the score method. `problem.py` has the examples, what is held back and the explained effect,
`fit.py` the training, `masks.py` the soft and hard top-k masks, `loss.py` what is minimised, `partial.py` the finished
seeds of a run that was stopped. May import: what `scores` may, and `scores.gates`.
"""
