"""Ordinary PyTorch models, data sets and training, as `sparsify run` uses them.

In: `registry.find("gcn")`, `data.load("cora")`. Out: a dense model and a graph. Nothing here is sparse: the
models are what a user would write, and the compiler knows none of them by name.
"""
