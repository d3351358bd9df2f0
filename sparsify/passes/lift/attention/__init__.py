"""Attention that a model spells out, to `scaled_dot_product_attention` and to an einsum program over a mask.

In: softmax, products, masks and biases as operators. Out: one region over the pattern of a rule.
Read `find.py`, then what it recognises, `mask.py`, `program.py`, `reference.py`.
"""
