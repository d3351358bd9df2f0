"""Rewrites of einsum programs: einsum in, einsum out."""
