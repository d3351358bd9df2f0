"""C++ functions on arrays besides generated kernels: edges sorted into CSR, digests, cleared gradients."""
