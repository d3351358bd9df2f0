"""Loops over levels: merged, intersected, searched, in parallel."""
