"""Finished steps: begin with `store.py` (cells.sqlite, a transaction per step). `salvage.py` saves what a damaged file
still holds. May import: errors, files.
"""
