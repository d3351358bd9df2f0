"""Formats, fills and densities of all tensors of a model program, from those of its leaves.

In: `y[i,j] = a[i,j] * m[i,j]` with a in CSR. Out: y on the pattern of a, with fill 0.

The compiler's rules say where a result is its fill. A result of a pattern that only a kernel finds is dense where more
than `DENSE` of it is expected to be stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.infer_format import Sparsity, declare_result, dense_format, infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Call, Const, Declaration, Expr, Reduce, Stored
from sparsify.passes.program.model import ModelProgram, Size

# The share of stored entries above which a result is declared dense.
DENSE: Final = 0.3
# What an extent that only a call knows counts as.
UNKNOWN: Final = 1024


@dataclass
class Storage:
    """How the tensors of a program are stored.

    Attributes:
        leaves: by name the sparse leaves.
        densities: by name of a leaf the share of its entries that are stored, as far as known.
        declarations: by name every tensor of the program.
    """

    program: ModelProgram
    leaves: Mapping[str, Operand]
    densities: Mapping[str, float]
    declarations: dict[str, Declaration] = field(default_factory=dict)

    def is_sparse(self, name: str) -> bool:
        """Whether a tensor leaves out its fill."""
        declared = self.declarations.get(name)
        return declared is not None and not declared.format.is_dense

    def is_found(self, name: str) -> bool:
        """Whether a kernel finds the pattern of a tensor."""
        return (
            name in self.program.statements
            and self.is_sparse(name)
            and not self.declarations[name].pattern_of
        )

    def sparsity(self, expr: Expr) -> Sparsity:
        """Where an expression is its fill."""
        return infer_sparsity(expr, self.declarations)


def infer(program: ModelProgram, leaves: Mapping[str, Operand], densities: Mapping[str, float]) -> Storage:
    """The storage of all tensors of a program.

    Args:
        leaves: the sparse leaves; others are dense.
        densities: of sparse leaves.
    """
    storage = Storage(program, leaves, densities)
    known = storage.declarations
    for name, statement in program.statements.items():
        read = program.reads(name)
        for leaf in read:
            if leaf not in known:
                known[leaf] = leaf_declaration(program, leaf, leaves.get(leaf))
        indices = tuple(str(index) for index in statement.target.indices)
        dense = Declaration(name, indices, dense_format(len(indices)), program.dtypes[name])
        if not any(storage.is_sparse(tensor) for tensor in read):
            known[name] = dense
            continue
        known[name] = declare_result([statement], indices, known)
        if storage.is_found(name) and density(storage, statement.value) > DENSE:
            known[name] = dense
    return storage


def leaf_declaration(program: ModelProgram, name: str, operand: Operand | None) -> Declaration:
    """The declaration of a tensor that no statement computes."""
    extents = tuple(f"{name}_{mode}" for mode in range(len(program.sizes[name])))
    if operand is None:
        return Declaration(
            name, extents, dense_format(len(extents)), name_of(program.source[name].meta["val"].dtype)
        )
    return Declaration(name, extents, operand.format, operand.dtype, operand.fill, operand.index_dtypes)


def density(storage: Storage, expr: Expr) -> float:
    """The expected share of stored entries, entries being where they are by chance.

    `a * b` stores `d(a) * d(b)`, `a + b` at most `d(a) + d(b)`, a sum over n coordinates `1 - (1 - d) ** n`.
    """
    match expr:
        case Stored(access):
            return density(storage, access)
        case Access(tensor, _):
            if not storage.is_sparse(tensor):
                return 1.0
            statement = storage.program.statements.get(tensor)
            if statement is not None:
                return density(storage, statement.value)
            return storage.densities.get(tensor, 0.0)
        case Reduce(_, indices, body):
            share = density(storage, body)
            count = prod(number_of(storage.program.extents[name]) for name in indices)
            return 1 - (1 - min(share, 1.0)) ** count
        case Call("where", (condition, yes, no)):
            if storage.sparsity(condition).fill is None:
                return min(1.0, density(storage, yes) + density(storage, no))
            return density(storage, condition)
        case Call("mul" | "div" | "logical_and", args):
            return prod(density(storage, arg) for arg in args if not isinstance(arg, Const))
        case Call(_, args):
            return min(1.0, sum(density(storage, arg) for arg in args if not isinstance(arg, Const)))
    return 1.0


def number_of(size: Size) -> int:
    """An extent as a number."""
    return size if isinstance(size, int) else UNKNOWN
