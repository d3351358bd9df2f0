"""Graph passes: from a model and a recipe to a graph with sparse regions as kernels.

In: the captured graph of a GCN and `gcn.yaml`. Out: a graph of two calls, `call_region(1, ...)`, `call_region(2, ...)`.
The order of the passes is `pipeline.PASSES`.
"""
