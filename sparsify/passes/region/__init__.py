"""Data shared by lift, decide, choose and emit: sparse operands, regions and their text.

In: nodes and marks. Out: `Matrix`, `Region`. Read `sparse_operand.py`, `region.py`, `printer.py`.
"""
