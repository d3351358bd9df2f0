"""Models whose attention and linear layers are found, with results as in float64.

In: `python -m experiments.coverage`. Out: the table of docs/models.md.
"""
