"""torch's names on sparse tensors; importing this package puts them into the table of `storage.tensor`.

In: `A @ B` with A a `SparseTensor`. Out: the result of a generated kernel, dense or sparse by format inference.
"""

from sparsify.ops import (
    close,
    convolutions,
    elementwise,
    embeddings,
    fallback,
    index,
    join,
    layouts,
    lookup,
    moments,
    norms,
    places,
    products,
    rank,
    reductions,
    reshape,
    softmax,
    triangle,
    valuewise,
)

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
    "triangle",
    "valuewise",
]
