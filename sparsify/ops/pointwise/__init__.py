"""Functions entry by entry: of two tensors, of one, and comparisons of whole tensors."""
