"""Joint effects of heads: interactions of pairs, effects given a removed set, backup heads, groups.

Begin with `interactions.py` (`hw.interactions`). `pairs.py` measures and estimates the pairs. The study `backups` adds
`sets.py`: the greedy choice of a set, its backups and their proof, groups.
May import: errors, stats, heads, model, metrics, the other scores.
"""
