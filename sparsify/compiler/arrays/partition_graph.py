"""Steps of a multilevel graph partitioner in C++: label propagation, growing, refinement.

In: a symmetric adjacency in CSR and the part of each node. Out: the same arrays with nodes moved to better parts, in
place: `propagate` takes some rows at a time, so edges may stay on disk; `refine` and `grow` take the whole graph.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.options import Options, current

Array = np.ndarray[Any, Any]
POINTERS: Final = ("pos", "crd", "edge_weight", "node_weight", "part", "size", "limit")
WORK: Final = ("gain", "heap", "place", "target", "moved", "source")


class _Graph(ctypes.Structure):
    """The arguments of the functions in C++."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("first", "rows", "nodes", "parts", "patience", "seed")],
        *[(name, ctypes.c_void_p) for name in POINTERS],
        ("limit_step", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("score", "touched")],
        *[(name, ctypes.c_void_p) for name in WORK],
    )


@dataclass
class Labels:
    """The part of each node, and the weight of each part.

    Attributes:
        part: int32 [nodes].
        size: int64 [parts], the sum of node weights of each part.
        limit: int64 [parts], or [1] for a common limit of all parts.
    """

    part: Array
    size: Array
    limit: Array
    score: Array = field(init=False)
    touched: Array = field(init=False)

    def __post_init__(self) -> None:
        self.score = np.zeros(len(self.size), np.int64)
        self.touched = np.empty(len(self.size), np.int32)


def propagate(
    first: int, pos: Array, crd: Array, labels: Labels, *, edge_weight: Array | None = None,
    node_weight: Array | None = None, seed: int = 0,
) -> int:  # fmt: skip
    """One sweep of size-constrained label propagation over some rows; the number of moved nodes.

    Args:
        first: the node of the first row.
        pos, crd: int64 [rows + 1] from 0, int32 [entries]: the rows in CSR.
        labels: changed in place.
        edge_weight, node_weight: int64 [entries] and [nodes], 1 if left out.
        seed: random seed of the choice between equal clusters.

    Source: Meyerhenke, Sanders, Schulz, Partitioning complex networks via size-constrained clustering, 2014.
    """
    return _call("sparsify_propagate", first, pos, crd, labels, edge_weight, node_weight, seed=seed)


def refine(
    pos: Array,
    crd: Array,
    labels: Labels,
    edge_weight: Array | None,
    node_weight: Array | None,
    patience: int,
) -> int:
    """One pass of k-way refinement of a whole graph; returns the decrease of the cut.

    Source: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, 1982.
    """
    return _call("sparsify_refine", 0, pos, crd, labels, edge_weight, node_weight, patience=patience)


def grow(
    pos: Array, crd: Array, labels: Labels, edge_weight: Array | None, node_weight: Array | None,
    weight: int, seed: int,
) -> int:  # fmt: skip
    """Moves nodes around `seed` from part 1 to part 0, smallest cut first, until part 0 has the weight."""
    return _call("sparsify_grow", 0, pos, crd, labels, edge_weight, node_weight, patience=weight, seed=seed)


def _call(
    symbol: str, first: int, pos: Array, crd: Array, labels: Labels, edge_weight: Array | None,
    node_weight: Array | None, patience: int = 0, seed: int = 0,
) -> int:  # fmt: skip
    """Calls a function of the C++ text; the arrays are kept alive for the call."""
    nodes = len(labels.part)
    given = (pos, crd, edge_weight, node_weight, labels.part, labels.size, labels.limit)
    kinds = (np.int64, np.int32, np.int64, np.int64, np.int32, np.int64, np.int64)
    for name, array, kind in zip(POINTERS, given, kinds, strict=True):
        assert array is None or (array.dtype == kind and array.flags.c_contiguous), name
    work: list[Array] = []
    if symbol != "sparsify_propagate":
        work = [np.empty(nodes, np.int64), *(np.empty(nodes, np.int32) for _ in WORK[1:])]
    asked = _Graph(
        first, len(pos) - 1, nodes, len(labels.size), patience, seed,
        *(None if array is None else array.ctypes.data for array in given), int(len(labels.limit) > 1),
        labels.score.ctypes.data, labels.touched.ctypes.data, *(array.ctypes.data for array in work),
    )  # fmt: skip
    return int(_loaded(symbol, current())(ctypes.byref(asked)))


@cache
def _loaded(symbol: str, options: Options) -> Callable[[Any], int]:
    """A function of the C++ text.

    Raises:
        CompilerNotFoundError, BuildError: compilation failed.
    """
    source = resources.files("sparsify.compiler.cpp").joinpath("partition.cpp").read_text(encoding="utf-8")
    made = library(source, {}, replace(options, compiler_flags=()), symbol=symbol)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(made.address)
