"""A mixture of experts to one einsum program over the entries of its gate.

In: a gate that a rule marked, and the operators of all experts. Out: one region.
Read `mixture.py`, `gate.py`, `rows.py`, `capacity.py`.
"""
