"""Exact ablation on only as many examples as the question needs: begin with `adaptive.py`, the stopping rules.

`sample.py` holds what was measured, and the control variate. May import: errors, stats, heads.
"""
