"""Ordinary PyTorch models, data sets and training, as `sparsify run` uses them.

In: `registry.find("gcn")`, `data.load("cora")`. Out: a dense model and a graph. The models are plain dense PyTorch, as
a user would write them; the compiler knows no model by name.
"""
