"""Weights of a sparse model: packed while frozen, sparse parameters in training, mirrors of modules."""
