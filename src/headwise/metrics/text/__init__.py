"""Metrics of generated text: begin with `registry.py`, then `built_in.py`.

May import: errors, registry, `headwise.model.load` for bundled weights.
"""
