"""Loops: over ranges and tiles, over the coordinates of levels, merged or intersected, in parallel."""
