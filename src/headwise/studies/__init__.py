"""The questions. A study is one folder, and ordinary Python over steps; begin with `score/study.py`, the smallest, then
`run.py` (what a study is written with) and `base.py` (what a study is, and how one is carried out).

`steps.py` has the steps that several studies take, `settings/` reads study files and flags, `workbench.py` loads models
and tasks once, `abilities.py` sorts examples by label, `verify.py` computes steps again. May import everything but cli
and explorer. Importing this package loads nothing: `section.py` of a study is read by the report, which has no torch.
"""
