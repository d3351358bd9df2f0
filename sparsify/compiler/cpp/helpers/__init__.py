"""The C++ text of helper functions for generated kernels: vectors, bits, half precision, random numbers."""
