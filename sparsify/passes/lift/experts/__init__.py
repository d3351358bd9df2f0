"""Mixtures of experts in a graph: which tensors are their gates, and where these choose.

In: the operators of a mixture. Out: the gate that rules name, the node that says where it chooses, and for slots of
experts the gate over tokens. Read `mixture.py`, `gate.py`, `capacity.py`.
"""
