"""The questions. A study is one folder; begin with `base.py` (what a study is, and `run`) and `context.py` (what its
stages and cells share), then `score/`, the smallest.

`settings/` reads study files and flags, `workbench.py` loads models and tasks once, `abilities.py` sorts examples by
label, `halves.py` splits them into a finding and a held-out half, `tables.py` has tables of several studies,
`verify.py` computes cells again. May import everything but cli and explore. Importing this package loads nothing:
`findings.py` and `charts.py` of a study are read by the report, which has no torch.
"""
