"""Exact ablation on only as many examples as the question needs: begin with `adaptive.py`.

May import: errors.
"""
