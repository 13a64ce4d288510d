"""RASP programs compiled by tracr into transformers whose heads are known. Begin with `rasp_programs.py`.

`export.py` compiles (in an environment of its own), `model.py` converts to transformers and adds heads that the program
does not use, `known.py` makes models, tasks and true heads of them, `measure.py` compares score methods with the
truth, `table.py` writes what docs/scores.md says of it. `make compiled` does all of it.
"""
