"""Sparse-attention post-training: text, objective, training, evaluation. The way in is `headwise.sparsify`."""
