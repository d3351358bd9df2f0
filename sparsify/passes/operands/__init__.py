"""Sparse operands computed once per structure, and their memos.

In: tensors of a call. Out: packed operands. Read `content_memo.py`, `alignment.py`, `cached_operands.py`, then
convolutions: `sliding_window.py`, `convolution_operands.py`.
"""
