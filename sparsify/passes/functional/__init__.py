"""Functionalization: in-place operators become pure operators, before any pass reads the graph.

In: a captured graph with writes, also through views. Out: a graph in which no operator changes a tensor read by another
operator. Read `functionalize.py`, `pure_writes.py`, `layouts.py`.
"""
