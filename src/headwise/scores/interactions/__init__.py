"""Joint effects of heads: interactions of pairs, effects given a removed set, backup heads, groups.

Begin with `interactions.py` (`hw.interactions`). `pairs.py` measures the pairs, `estimate.py` has their first-order
estimate, `result.py` what the call returns. The study `backups` adds `sets.py` (the greedy choice of
a set, its backups), `freezing.py` and `groups.py`. May import: errors, stats, heads, model, metrics, the other scores.
"""
