"""Python numbers as operands of kernels, so that one kernel serves all values of a scalar.

In: `y[i] = 0.1 * x[i]`, with 0.1 the value of `a`. Out: `y[i] = a * x[i]`, with the declared number `a`, and
`{"a": tensor(0.1)}`. A number promotes like the replaced constant, and results have the same bits.

Scalars that decide the computation stay constants: exponents, bounds, indices, zeros and ones, and addends of a sparse
tensor, because an addend becomes the fill.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, cast

import torch

from sparsify.compiler.einsum.infer.dtype import kind_of
from sparsify.compiler.einsum.infer.sparsity import DENSE, Sparsity, infer_sparsity
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Stored,
)
from sparsify.compiler.einsum.rename import fresh, substitute_scalars
from sparsify.compiler.einsum.rewrite.simplify import fold_constants
from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.errors import DtypeError, EinsumError
from sparsify.storage.format import Format

FUNCTIONS: Final = frozenset({"add", "sub", "mul", "div", "lt", "le", "gt", "ge", "eq", "ne"})
LARGEST: Final = 1 << 31
SCALAR: Final = Format("scalar")


@dataclass(frozen=True, slots=True)
class Substituted:
    """Statements with constants in place of scalars, and the constants derived from scalars, by identity."""

    statements: tuple[Assign, ...]
    names: Mapping[int, str]
    constants: tuple[Const, ...]


def substituted(statements: Sequence[Assign], scalars: Mapping[str, float]) -> Substituted:
    """The statements with Python numbers in place of their names, and constant subexpressions folded."""
    for name, value in scalars.items():
        if isinstance(value, complex):
            raise DtypeError(f"the complex number {name}={value}", f"torch.tensor({value})")
    for stored in (node for statement in statements for node in find(statement.value, Stored)):
        if stored.access.tensor in scalars:
            raise EinsumError(f"{stored} of a number", "stored takes an access of a tensor, stored(A[i,j])")
    constants = {name: Const(value) for name, value in scalars.items()}
    names = {id(constant): name for name, constant in constants.items()}
    kept = [*constants.values()]

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return node
        node = map_children(node, visit)
        if not isinstance(node, Call) or not all(isinstance(arg, Const) for arg in node.args):
            return node
        found = fold_constants(node) if any(id(arg) in names for arg in node.args) else None
        if not isinstance(found, Const) or kind_of(found, {}) != kind_of(node, {}):
            return node
        names[id(found)] = "number"
        kept.append(found)
        return found

    def value_of(statement: Assign) -> Expr:
        value = substitute_scalars(statement.value, constants)
        return cast(Expr, visit(value)) if constants else value

    made = tuple(replace(statement, value=value_of(statement)) for statement in statements)
    return Substituted(made, names, tuple(kept))


def lifted(program: Program, source: Substituted) -> tuple[Program, dict[str, torch.Tensor]]:
    """The program with declared numbers in place of constants derived from scalars, and their values by name."""
    declared = {d.name: d for d in program.declarations}
    names: dict[int, str] = {}
    numbers: dict[str, Declaration] = {}
    values: dict[str, torch.Tensor] = {}

    def number(constant: Const) -> Access:
        if id(constant) not in names:
            name = names[id(constant)] = fresh(source.names[id(constant)], {*declared, *numbers})
            dtype = "int64" if isinstance(constant.value, int) else "float64"
            numbers[name] = Declaration(name, (), SCALAR, dtype, is_number=True)
            values[name] = torch.tensor(constant.value, dtype=getattr(torch, dtype), device="cpu")
        return Access(names[id(constant)])

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return node
        node = map_children(node, visit)
        if not isinstance(node, Call) or node.function not in FUNCTIONS:
            return node
        for place, arg in enumerate(node.args):
            is_scalar = isinstance(arg, Const) and id(arg) in source.names and _is_general(arg)
            if is_scalar and holds(node.args[1 - place], Access, Index):
                args = [
                    number(cast(Const, arg)) if n == place else other for n, other in enumerate(node.args)
                ]
                changed = Call(node.function, tuple(args))
                known = declared | numbers
                if _entries(changed, known) == _entries(node, known):
                    return changed
        return node

    statements = tuple(cast(Assign, visit(statement)) for statement in program.statements)
    read = {access.tensor for statement in statements for access in find(statement.value, Access)}
    used = [name for name in numbers if name in read]
    if not used:
        return program, {}
    given = len(program.inputs)
    declarations = [*program.declarations]
    declarations[given:given] = [numbers[name] for name in used]
    made = Program(
        statements, tuple(declarations), (*program.inputs, *used), program.outputs, program.extents
    )
    return made, {name: values[name] for name in used}


def _entries(expr: Expr, declarations: Mapping[str, Declaration]) -> Sparsity:
    """The sparsity of an expression; `DENSE` for all expressions without compressed modes."""
    found = infer_sparsity(expr, declarations)
    return found if any(is_compressed for _, is_compressed in found.compressed) else DENSE


def _is_general(constant: Const) -> bool:
    """Whether a number is generic: finite, and without the algebraic simplifications of 0 and 1."""
    value = constant.value
    if isinstance(value, bool) or abs(value) in (0, 1):
        return False
    return isfinite(value) if isinstance(value, float) else abs(value) < LARGEST
