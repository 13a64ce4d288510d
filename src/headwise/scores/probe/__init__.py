"""From which heads the label of an example can be read (Cognitive Mirrors, arXiv 2512.10978): begin with `probe.py`.

May import: what `scores` may.
"""
