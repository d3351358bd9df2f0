"""Values: loads, stores and expressions, a scalar or one value a lane; elements of temporaries."""
