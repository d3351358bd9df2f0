"""Message passing on nodes in another order, with neighbours close to each other.

In: a marked graph with message passing. Out: the graph with a node permutation. Read `reorder.py`, `rowwise.py`,
`node_order.py`.
"""
