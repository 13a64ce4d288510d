"""Sparse-attention post-training (arXiv 2512.05865): begin with `sparsify.py`, then `trainer.py`.

May import what studies may, but no study.
"""
