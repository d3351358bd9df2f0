"""Pruning: which entries of weights become zero.

In: weights, and statistics of their inputs. Out: masks, and weights that were updated to make up for the zeros.
Read `statistics.py` (X^T X of the products of a model), `wanda.py` and `sparsegpt.py` (one weight), `structure.py`
(which entries live and die together), `calibration_data.py`, `calibrate.py` (a whole model).
"""
