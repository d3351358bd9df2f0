"""Regions to kernel calls in the graph, and later passes over the graph.

In: regions. Out: the graph that will run. Read `emit.py`, `mask_gradients.py`, `write_in_place.py`.
"""
