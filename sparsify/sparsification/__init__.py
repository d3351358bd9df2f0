"""Sparsification: sparsifiers set entries of tensors to zero."""
