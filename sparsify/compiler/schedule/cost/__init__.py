"""The cost model: expected iterations, bytes and microseconds of a schedule."""
