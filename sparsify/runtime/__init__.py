"""Runtime support of kernels: the OpenMP runtime, threads and reusable buffers."""
