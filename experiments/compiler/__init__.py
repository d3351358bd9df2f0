"""Expressions of every kind beside the best that torch and scipy have: `python -m experiments.compiler`."""
