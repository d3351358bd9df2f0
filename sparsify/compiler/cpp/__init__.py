"""C++: text of kernels, compiled and cached."""
