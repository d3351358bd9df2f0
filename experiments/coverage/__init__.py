"""Coverage of models: attention and linear layers in kernels, with results as in float64.

In: `python -m experiments.coverage`. Out: the table of docs/models.md.
"""
