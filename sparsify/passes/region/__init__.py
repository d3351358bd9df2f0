"""The data that lift, fuse, choose and emit share: sparse operands, fragments, regions and their text.

In: nodes and marks. Out: `Matrix`, `Fragment`, `Region`. Read `sparse_operand.py`, `fragment.py`, `region.py`,
`printer.py`.
"""
