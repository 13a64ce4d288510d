"""V gates × E examples -> metric values and gradients: begin with `engine.py`.

`rows.py` cuts a task into blocks of rows, `references.py` computes what replaces an ablated head (mean, patch, …),
`positions.py` says where gates act, `joint.py` removes pairs. May import: errors, heads, tasks, `model.tokens`,
`model.sites`, `model.forward`, `model.backward`.
"""
