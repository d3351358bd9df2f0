"""Graph nodes to einsum programs, by operator pattern and never by model or module name.

In: a marked graph. Out: fragments and regions in `node.meta`, refusals in `info(node).dense_reason`.
Read `lift.py`, `lifter.py`, then one room for each larger pattern: `attention/`, `experts/`.
"""
