"""Graph nodes to einsum programs, by operator pattern and never by model or module name.

In: a marked graph. Out: regions from recognisers, refusals in `info(node).dense_reason`. Read `lift.py`, then one
folder for each larger pattern: `attention/`, `experts/`.
"""
