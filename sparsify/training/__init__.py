"""Training of sparse weights: their masks, and how they change.

In: modules with sparse parameters, or dense ones with zeros, and their optimizers. Out: the same objects under new
masks. Read `set_mask.py`, `dense_gradients.py`, then `pruner.py`.
"""
