"""Storage of tensors: levels, formats, patterns, `SparseTensor` and the conversions between formats."""
