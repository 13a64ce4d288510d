"""Heads, scores on heads, orders, gates over heads, and the controls they are compared with.

Begin with `head.py` and `scores.py`; `components.py` says where MLPs, the embeddings and key/value heads stand,
`gates.py` makes gates from heads, `controls.py` draws random and layer-matched heads, `heads_file.py` reads a list of
heads or a score table, `position_scores.py` has scores at token positions. Nothing here knows what a model is. May
import: errors, files, names, settings, stats, tables; charts in `plot`.
"""

from headwise.heads.components import COMPONENTS, HEADS, KV_HEADS, ComponentKinds, Layout
from headwise.heads.edges import Edge, Edges
from headwise.heads.gates import (
    chosen_gates,
    gate_numbers,
    keep_gates,
    lone_gates,
    mask_gates,
    ones,
    single_gates,
)
from headwise.heads.head import RANKED_BY, Head, Order, at_least_one, head_list, heads_of, ranked
from headwise.heads.heads_file import load_order, save_order
from headwise.heads.position_scores import PositionScores
from headwise.heads.scores import Scores
