"""Pruning: which entries of weights become zero, and which come back.

In: weights, gradients, masks, a step and a seed. Out: masks. A method is a composition of five names: read `methods.py`
(the table), then `score.py`, `schedule.py`, `scope.py`, `structure.py` and `regrow.py`; `masks.py` joins them,
`plan.py` and `targets.py` read them from recipes, `plot.py` draws them on a `chart.py`. Methods that need inputs of the
model: read `statistics.py` (X^T X of the products of a model), `wanda.py` and `sparsegpt.py` (one weight),
`calibrate.py` (a whole model).
"""
