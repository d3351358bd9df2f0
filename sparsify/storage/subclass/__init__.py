"""`SparseTensor` as a `torch.Tensor`: operators of the dispatcher, methods, parametrizations, masks of weights."""
