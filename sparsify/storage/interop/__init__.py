"""From and to the tensors of others: dense ones, torch's sparse layouts, scipy's arrays."""
