"""Levels of tensors: positions of accesses, stored coordinates of loops, entries at known coordinates."""
