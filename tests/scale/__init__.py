"""Tests of `sparsify.scale`."""
