"""Application of recipe rules to the weights of a model and to the nodes of its graph.

In: a model or a canonical graph, and a recipe. Out: pruned weights (`prune.py`, `prunable.py`, `product_weights.py`);
marks on nodes (`mark.py`), propagated through operators that preserve the fill value (`propagate.py`).
"""
