"""Inference over einsum programs: extents, dtypes, formats, patterns and densities of each result."""
