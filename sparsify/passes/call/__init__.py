"""The call of a region: where its operands come from, and how its kernel runs.

In: the arguments of a node `call_region`. Out: the region's results. Read `bind.py`, `region_call.py`,
`region_operator.py` (traced calls), `first_backward.py`, `alternative.py`.
"""
