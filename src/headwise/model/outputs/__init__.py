"""What heads write: outputs over an answer and steering directions (`answers.py`), the linear path to the logits
(`readout.py`), logits after each block and gradients around one (`stream.py`). May import: errors, heads, tasks,
`model.tokens`, `model.sites`, `model.forward`.
"""
