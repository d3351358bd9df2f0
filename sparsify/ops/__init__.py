"""Implementations of torch's operators on sparse tensors; importing registers them in the table of `storage.tensor`.

In: `A @ B` with A a `SparseTensor`. Out: the result of a generated kernel, dense or sparse by format inference.
"""

from sparsify.ops import convolutions, embeddings, layouts, products, trained, triangle
from sparsify.ops.entries import index, join, lookup, reshape
from sparsify.ops.pointwise import close, elementwise, valuewise
from sparsify.ops.reduce import moments, norms, places, rank, reductions, softmax
from sparsify.ops.register import fallback

__all__ = [
    "close",
    "convolutions",
    "elementwise",
    "embeddings",
    "fallback",
    "index",
    "join",
    "layouts",
    "lookup",
    "moments",
    "norms",
    "places",
    "products",
    "rank",
    "reductions",
    "reshape",
    "softmax",
    "trained",
    "triangle",
    "valuewise",
]
