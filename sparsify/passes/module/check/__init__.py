"""Variants against the source model: results, gradients and times, on calls without traces."""
