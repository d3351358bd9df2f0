"""Variants: graphs for one mode and input structure, and the functions that run graphs eagerly."""
