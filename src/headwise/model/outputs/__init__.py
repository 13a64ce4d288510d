"""What a head writes: its output over an answer (`answers.py`), through to the logits (`readout.py`), towards right
answers (`directions.py`). May import: errors, heads, tasks, `model.tokens`, `model.sites`, `model.forward`.
"""
