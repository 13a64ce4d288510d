"""Proof that the heads of a model are reached: begin with `proof.py`, what `headwise check` proves.

`shortcuts.py` proves what a pass may leave out; `families.py` has tried every family of transformers, on the tiny
random models of `tiny.py`. May import: errors, progress, `model.sites`, `model.forward`.
"""
