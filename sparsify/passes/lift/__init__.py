"""Graph nodes to einsum programs, by operator pattern and never by model or module name.

In: a marked graph. Out: regions of what has roads of its own, refusals in `info(node).dense_reason`.
Read `lift.py`, then one room for each larger pattern: `attention/`, `experts/`.
"""
