"""Finished cells: begin with `store.py` (cells.sqlite, a transaction per cell). `salvage.py` saves what a damaged file
still holds. May import: errors, files.
"""
