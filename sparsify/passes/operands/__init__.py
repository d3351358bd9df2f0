"""Sparse operands that are computed once for each structure, and memos that find them again.

In: tensors of a call. Out: packed operands. Read `content_memo.py`, `alignment.py`, `cached_operands.py`, then
convolutions: `sliding_window.py`, `convolution_operands.py`.
"""
