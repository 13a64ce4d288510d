"""Curves of a metric as the first k heads of an order are masked, or as only they are kept: begin with `sweep.py`.

`curve.py` is the result (and compares two), `explained.py` the explained effect (faithfulness), `edge_curve.py` the
curve over edges, `readings.py` what is read off finished curves, `mib.py` the metrics of the
benchmark MIB, `removal.py` the loss of smaller checkpoints.
May import: what scores may, and scores.
"""
