"""The call of a region: sources of operands, and execution of the kernel.

In: the arguments of a node `call_region`. Out: the region's results. Read `bind.py`, `region_call.py`,
`region_operator.py` (traced calls), `first_backward.py`, `alternative.py`.
"""
