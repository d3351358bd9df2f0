"""Operator patterns that have a meaning as einsum programs; never modules or model names."""
