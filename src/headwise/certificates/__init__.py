"""Certificates: is this set of heads really a circuit of this behaviour? Begin with `certify.py`, the call.

`checks.py` judges what was measured (arrays in, rows of a table out), `certificate.py` is the result: its verdict, its
sentence, its tables.
May import: what sweeps may, and sweeps.
"""
