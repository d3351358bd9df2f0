"""Mixtures of experts in a graph: their gates, and the positions chosen by gates.

In: the operators of a mixture. Out: the gate named by rules, the node with the chosen positions, and for slots of
experts the gate over tokens. Read `mixture.py`, `gate.py`, `capacity.py`.
"""
