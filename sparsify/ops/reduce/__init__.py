"""Reductions along modes: sums, moments, norms, order statistics, softmax."""
