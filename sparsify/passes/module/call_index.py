"""Calls like earlier ones: the variant for their arguments, found without taking the call apart.

In: the arguments `(x, A)` of a call, A a sparse matrix. Out: a key that calls for the same variant share, and the
tensors of its graph: `x` and the parts of `A`.

Arguments are tensors in main memory, sparse matrices, and constants that equal each other only where they are the same;
every other call is taken apart each time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from sparsify.passes.capture.calls import SPARSE_LAYOUTS, Call
from sparsify.passes.module.variant import Variant
from sparsify.passes.operands.content_memo import SparseInputs
from sparsify.storage.own_memory import PLAIN
from sparsify.storage.tensor import SparseTensor

MOST: Final = 64
CONSTANTS: Final = frozenset({bool, int, str, type(None)})
Key = tuple[Any, ...]


class Quick:
    """The variants of the last calls by the keys of their arguments.

    Args:
        modules: whose modes tell calls apart.
        matrices: the parts of sparse matrices.
    """

    def __init__(self, modules: Sequence[nn.Module], matrices: SparseInputs) -> None:
        self.modules, self.matrices = tuple(modules), matrices
        self.variants: dict[Key, Variant] = {}

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, list[torch.Tensor]] | None:
        """The key of a call and the tensors of its graph, `None` for arguments that have no key."""
        key: list[Any] = [module.training for module in self.modules]
        if kwargs:
            key.append(tuple(kwargs))
            args = (*args, *kwargs.values())
        tensors: list[torch.Tensor] = []
        for arg in args:
            kind = type(arg)
            if kind is SparseTensor:
                parts = self.matrices(arg)
                key += kind, parts[2].dtype, parts[2].shape, parts[3].shape
                tensors += parts
            elif kind in PLAIN and arg.is_cpu:
                key += arg.dtype, arg.layout, arg.shape
                if arg.layout in SPARSE_LAYOUTS:
                    parts = self.matrices(arg)
                    key.append(parts[2].shape)
                    tensors += parts
                else:
                    tensors.append(arg)
            elif kind in CONSTANTS:
                key += kind, arg
            else:
                return None
        return tuple(key), tensors

    def remember(
        self, key: Key, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call, variant: Variant
    ) -> None:
        """Keeps the variant of a call whose leaves are its arguments in their order."""
        given = (*args, *kwargs.values())
        if len(given) == len(call.values) and all(map(_is_same, given, call.values)):
            if len(self.variants) >= MOST:
                self.variants.clear()
            self.variants[key] = variant


def _is_same(one: object, other: object) -> bool:
    return one is other
