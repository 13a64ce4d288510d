"""What is verified when a model is loaded: begin with `proof.py`, what `headwise check` verifies.

`shortcuts.py` verifies what a pass and a generation may leave out or share, `components.py` finds MLPs and embeddings;
`capabilities.py` holds all of it for one model. `families.py` has tried every family of transformers, on the tiny
random models of `tiny.py`. May import: errors, progress, `model.sites`, `model.forward`, `model.backward`.
"""
