"""Random programs through every representation and through compiled kernels."""
