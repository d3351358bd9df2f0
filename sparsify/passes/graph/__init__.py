"""Views of fx graphs, independent of sparsity.

In: the nodes of a captured graph. Out: one name for each operator (`operators.py`), the canonical graph
(`canonicalize.py`), constant analysis (`constant_values.py`), new nodes (`insert.py`).
"""
