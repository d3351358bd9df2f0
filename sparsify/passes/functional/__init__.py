"""Operators that write in place to pure operators, before any pass reads the graph.

In: a captured graph with writes, also through views. Out: a graph in which no operator changes a tensor that another
one reads. Read `functionalize.py`, `pure_writes.py`, `layouts.py`.
"""
