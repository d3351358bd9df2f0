"""Measurements for `sparsify bench`: contenders in turns, suites of cases, tables."""
