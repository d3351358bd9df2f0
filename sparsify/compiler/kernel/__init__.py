"""Kernels as functions of tensors: operands, the fast path of calls, gradients, traced graphs."""
