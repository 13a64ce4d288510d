"""Ways to give every head a number, one file per method."""

from headwise.scores.registry import Method, Setup, method, methods, register, score

__all__ = ["Method", "Setup", "method", "methods", "register", "score"]
