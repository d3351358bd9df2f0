"""Regions to kernel calls in the graph, and what is done to the graph afterwards.

In: regions. Out: the graph that will run. Read `emit.py`, `mask_gradients.py`, `write_in_place.py`.
"""
