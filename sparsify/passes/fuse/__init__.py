"""Neighbouring fragments joined to regions.

In: lifted nodes. Out: `draft.regions`, each one einsum program. Read `fuse.py`, `product_order.py` (A(XW) or (AX)W),
`joint_aggregation.py` (several results over the same edges).
"""
