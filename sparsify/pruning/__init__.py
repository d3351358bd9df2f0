"""Pruning: choice of the entries of weights to drop and to regrow.

In: weights, gradients, masks, a step and a seed. Out: masks. A method is a composition of five names: read `methods.py`
(the table), then `score.py`, `schedule.py`, `scope.py`, `structure.py` and `regrow.py`; `masks.py` combines all five,
`plan.py` and `targets.py` read compositions from recipes, `plot.py` draws schedules with `chart.py`. For methods with
calibration inputs read `statistics.py` (X^T X of the products of a model), `wanda.py` and `sparsegpt.py` (one weight),
`calibrate.py` (a whole model).
"""
