"""Recipe rules applied: to the weights of a model, and to the nodes of its graph.

In: a model or a canonical graph, and a recipe. Out: pruned weights (`prune.py`, `prunable.py`, `product_weights.py`);
marks on nodes (`mark.py`), carried through operators that keep the fill value (`propagate.py`).
"""
