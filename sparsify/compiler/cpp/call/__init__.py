"""The C++ text of calls: from the tensors of Python to the buffers of a kernel and back."""
