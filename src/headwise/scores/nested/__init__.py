"""Nested masks: a learned order of heads whose first k explain the behaviour at every k.

Begin with `nested.py`, the score method. `fit.py` trains, `masks.py` has the soft and hard top-k masks, `loss.py` what
is minimised, `held_back.py` the curve on examples that training does not see, `balance.py` the exact order of the heads
after the circuit. May import: what `scores` may, and `scores.gates`.
"""
