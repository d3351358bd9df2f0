"""Kernels under the transforms of torch: autograd, `torch.func`, nodes of traced graphs."""
