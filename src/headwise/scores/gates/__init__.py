"""Learned gates (Causal Head Gating, arXiv 2505.13737): begin with `gating.py`, the method; `fit.py` is the optimiser,
`likelihood.py` the loss, `contrastive.py` the variant that separates two
behaviours. May import: what `scores` may.
"""
