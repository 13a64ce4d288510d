"""Models and their attention heads: the only room that touches transformers."""
