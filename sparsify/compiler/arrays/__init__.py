"""Arrays beside the generated kernels: edges sorted into CSR, digests of memory, gradients cleared, in C++."""
