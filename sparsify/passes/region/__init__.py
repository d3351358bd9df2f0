"""The data that lift, decide, choose and emit share: sparse operands, regions and their text.

In: nodes and marks. Out: `Matrix`, `Region`. Read `sparse_operand.py`, `region.py`, `printer.py`.
"""
