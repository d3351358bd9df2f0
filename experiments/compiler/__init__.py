"""Expressions of every kind against the best of torch and scipy: `python -m experiments.compiler`."""
