"""Fragments joined to regions with the pointwise operators behind them.

In: lifted nodes. Out: `draft.regions`, each one einsum program. Read `fuse.py`.
"""
