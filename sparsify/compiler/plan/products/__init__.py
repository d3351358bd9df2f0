"""Products: contraction order, dense products of torch, sparse matrices in panels of columns."""
