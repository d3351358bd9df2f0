"""Layers whose weights are sparse from the start: `Linear`, `Conv2d`, `Embedding`.

In: `sparsify.nn.Linear(768, 3072, format="csr", sparsity=0.9)`. Out: a `torch.nn.Linear` whose weight is an
`nn.Parameter` of a `SparseTensor` with 235,930 entries at random places.

To read: `weight.py` draws the entries that a format can hold, `layers.py` has the layers. They compute by the operators
of `SparseTensor`s; `sparsify.apply` captures them, `sparsify.Pruner` changes their masks.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2.1: a sparse
model is built by layers and formats as a dense one is.
"""

from sparsify.nn.layers import Conv2d, Embedding, Linear

__all__ = ["Conv2d", "Embedding", "Linear"]
