"""Finished cells and tables: begin with `store.py`, the resume point. May import: errors, files."""
