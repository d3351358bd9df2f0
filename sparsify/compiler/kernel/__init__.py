"""Kernels as functions of tensors: operands, calls in one step, gradients, traced graphs."""
