"""Which entries of a tensor become zero."""
