"""Heads, scores on heads, orders, gates over heads, and the controls they are compared with.

Begin with `scores.py`; `gates.py` makes gates from heads, `controls.py` draws random and layer-matched heads,
`heads_file.py` reads a list of heads or a score table. Nothing here knows what a model is. May import: errors, files,
stats, charts.
"""

from headwise.heads.gates import (
    chosen_gates,
    gate_numbers,
    keep_gates,
    lone_gates,
    mask_gates,
    ones,
    single_gates,
)
from headwise.heads.scores import (
    RANKED_BY,
    Head,
    Order,
    Scores,
    head_list,
    heads_of,
    load_order,
    ranked,
    save_order,
)

__all__ = [
    "RANKED_BY",
    "Head",
    "Order",
    "Scores",
    "chosen_gates",
    "gate_numbers",
    "head_list",
    "heads_of",
    "keep_gates",
    "load_order",
    "lone_gates",
    "mask_gates",
    "ones",
    "ranked",
    "save_order",
    "single_gates",
]
