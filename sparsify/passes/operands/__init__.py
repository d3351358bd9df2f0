"""Sparse operands that are computed once for each structure, and memos that find them again.

In: tensors of a call. Out: packed operands. Read `content_memo.py`, `cached_operands.py`, `edge_slots.py`, then the
operands of single patterns: bags, convolutions, sliding windows.
"""
