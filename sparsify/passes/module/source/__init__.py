"""The source model on a sparse model: attributes, hooks, generation, traced calls."""
