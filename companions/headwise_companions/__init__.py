"""Adapters of headwise's bundled model, and a manifest of their files; see README.md."""
