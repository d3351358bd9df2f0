"""Decisions about a model program: formats of its tensors, and which statements become regions.

Read `infer`, then `cut`.
"""
