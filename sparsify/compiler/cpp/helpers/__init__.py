"""The C++ text of helper functions that generated kernels call: vectors, bits, half precision, random numbers."""
