"""The sparse tensor compiler: einsum programs in, plans of kernels out."""
