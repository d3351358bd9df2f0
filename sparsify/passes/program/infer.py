"""Formats, fills and densities of all tensors of a model program, inferred from the leaves.

In: `y[i,j] = a[i,j] * m[i,j]` with a in CSR. Out: y on the pattern of a, with fill 0. The compiler's rules determine
where a result equals its fill, and whether a result is expected to be too full to be sparse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.infer.density import expected_density
from sparsify.compiler.einsum.infer.format import declare_result, dense_format
from sparsify.compiler.einsum.infer.sparsity import Sparsity, infer_sparsity
from sparsify.compiler.einsum.nodes import Assign, Declaration, Expr
from sparsify.compiler.ir.dtypes import name_of
from sparsify.passes.program.model import ModelProgram, Size

# Assumed value of an extent known only at call time.
UNKNOWN: Final = 1024


@dataclass
class Storage:
    """The storage of the tensors of a program.

    Attributes:
        leaves: by name the sparse leaves.
        declarations: by name every tensor of the program.
    """

    program: ModelProgram
    leaves: Mapping[str, Operand]
    declarations: dict[str, Declaration] = field(default_factory=dict)

    def is_sparse(self, name: str) -> bool:
        """Whether a tensor omits its fill."""
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
        """The pattern outside of which an expression equals its fill."""
        return infer_sparsity(expr, self.declarations)


def infer(program: ModelProgram, leaves: Mapping[str, Operand], densities: Mapping[str, float]) -> Storage:
    """The storage of all tensors of a program.

    Args:
        leaves: the sparse leaves; others are dense.
        densities: of sparse leaves.
    """
    storage = Storage(program, leaves)
    declarations, expected = storage.declarations, dict(densities)
    extents = {name: number_of(size) for name, size in program.extents.items()}
    for name, statement in program.statements.items():
        read = program.reads(name)
        for leaf in read:
            if leaf not in declarations:
                declarations[leaf] = leaf_declaration(program, leaf, leaves.get(leaf))
        operands = tuple((declarations[tensor], expected.get(tensor)) for tensor in read)
        before = program.inferred.get(name)
        if before is None or before[0] is not statement or before[1] != operands:
            declared = declaration_of(storage, statement, expected, extents)
            before = program.inferred[name] = (statement, operands, *declared)
        *_, declarations[name], share = before
        if share is not None:
            expected[name] = share
    return storage


def declaration_of(
    storage: Storage, statement: Assign, expected: Mapping[str, float], extents: Mapping[str, int]
) -> tuple[Declaration, float | None]:
    """The declaration of a statement's target, and the expected density of a newly found pattern."""
    name, declarations = statement.target.tensor, storage.declarations
    indices = tuple(str(index) for index in statement.target.indices)
    if not any(storage.is_sparse(tensor) for tensor in storage.program.reads(name)):
        return Declaration(name, indices, dense_format(len(indices)), storage.program.dtypes[name]), None
    share = expected_density(statement.value, declarations, expected, extents)
    declaration = declare_result([statement], indices, declarations, density=share)
    return declaration, share if declaration.pattern_of is None else None


def leaf_declaration(program: ModelProgram, name: str, operand: Operand | None) -> Declaration:
    """The declaration of a tensor without a statement."""
    extents = tuple(f"{name}_{mode}" for mode in range(len(program.sizes[name])))
    if operand is None:
        return Declaration(
            name, extents, dense_format(len(extents)), name_of(program.source[name].meta["val"].dtype)
        )
    return Declaration(name, extents, operand.format, operand.dtype, operand.fill, operand.index_dtypes)


def number_of(size: Size) -> int:
    """An extent as a number."""
    return size if isinstance(size, int) else UNKNOWN
