"""Measurements: contenders in turns, suites of them, tables; behind `sparsify bench`."""
