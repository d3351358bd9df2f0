"""Message passing to einsum programs over an adjacency.

In: gather, pointwise operators, scatter. Out: fragments and regions over a sparse operand.
Read `gather_scatter.py`, `adjacency.py`, `edge_features.py`, `aggregation.py`, `edge_softmax.py`, `edge_dropout.py`.
"""
