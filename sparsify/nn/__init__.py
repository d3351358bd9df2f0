"""Layers with sparse weights from the start: `Linear`, `Conv2d`, `Embedding`.

In: `sparsify.nn.Linear(768, 3072, format="csr", sparsity=0.9)`. Out: a `torch.nn.Linear` with an `nn.Parameter` of a
`SparseTensor` as weight: 235,930 entries at random coordinates.

To read: `weight.py` draws entries representable in a format, `layers.py` has the layers. Layers compute by the
operators of `SparseTensor`s; `sparsify.apply` captures such layers, `sparsify.Pruner` changes masks.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2.1: a sparse
model is built by layers and formats as a dense one is.
"""

from sparsify.nn.layers import Conv2d, Embedding, Linear

__all__ = ["Conv2d", "Embedding", "Linear"]
