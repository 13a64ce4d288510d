"""V gates × E examples -> metric values and gradients: `engine.py`. What replaces an ablated head: `references.py`.

May import: errors, heads, tasks, `model.tokens`, `model.sites`, `model.forward`, `model.backward`.
"""
