"""How tensors are stored: levels, formats, patterns, `SparseTensor` and the conversions between formats."""
