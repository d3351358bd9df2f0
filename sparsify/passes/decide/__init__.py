"""Decisions about a model program: formats of its tensors, and the cut into regions.

Read `infer`, then `cut`.
"""
