"""Direct edges between components: what a head, an MLP or the embeddings add to the residual stream, and which query,
key, value or MLP reads it.

Begin with `parts.py` (which models can be taken apart) and `contributions.py` (what every sender adds). `exact.py`
measures edges one by one, `gradient.py` all of them by one backward pass, `circuit.py` runs a model in which only some
edges are kept. May import: errors, heads, tasks, `model.sites`, `model.forward`, `model.measure`, `model.verify`.
"""
