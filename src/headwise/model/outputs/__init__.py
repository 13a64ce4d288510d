"""What heads write: mean outputs over an answer (`answers.py`), the linear path to the logits (`readout.py`), steering
directions (`directions.py`), gradients around a block (`bypass.py`), logits after each block (`stages.py`). May import:
errors, heads, tasks, `model.tokens`, `model.sites`, `model.forward`.
"""
