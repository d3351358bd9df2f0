"""Adjoints of einsum programs, as einsum programs."""
