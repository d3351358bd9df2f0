"""Schedule templates by the shape of a nest: candidates for the cost model."""
