"""What runs beside the kernels: the OpenMP runtime, threads and reusable buffers."""
