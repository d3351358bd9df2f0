"""Level formats: storage of the coordinates of one level of a tensor, by name and as arrays."""
