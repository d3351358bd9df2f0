"""Which models have their attention and linear layers found, and that the results are right.

In: `python -m experiments.coverage`. Out: the table of docs/models.md.
"""
