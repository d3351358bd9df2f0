"""Tests of the namespace `sparsify.torch`."""
