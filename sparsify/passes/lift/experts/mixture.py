"""Mixtures of experts in a graph: which tensor is the gate of one, and the program of one whose tokens go to slots.

In:  `%y = einsum("te,teo->to", %gate, %z)`. Out: `%gate` is the gate of a mixture, which rules name `op:experts`.

Those go over the general road once a rule marks the gate. Tokens that are sent to slots of the experts and back, as
`capacity` says, become a region `H[t,e,h] = G[t,e] * relu(sum(i0, X[t,i0] * U[e,h,i0])); Y[t,o] += H[t,e,h] * V[e,o,h]`
here. Between the two products with the matrices of the experts there may be functions of single entries, biases, and
halves of the rows, as gated units have them.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Const
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.einsum_nodes import Einsum, einsum_of
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.lift.experts import capacity
from sparsify.passes.lift.experts.gate import is_decided
from sparsify.passes.lift.experts.rows import Rows
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.storage.format import Format

HALVES: Final = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
DTYPES: Final = {torch.float32: "float32", torch.float64: "float64", **HALVES}
# How experts list their tokens.
BY_EXPERT: Final = Format("csc")
# The note of their regions.
MIXTURE: Final = "mixture of experts"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        node: the weighted sum over the experts, [.., tokens, channels].
        gate: what it is weighted with, [.., tokens, experts].
        results: of all experts, [.., tokens, experts, channels]; or the einsum that takes their rows and the last
            matrices.
        covered: nodes of the weighted sum besides.
        combine: how the sum is one over slots of the experts, `None` where it is one over experts.
    """

    node: fx.Node
    gate: fx.Node
    results: fx.Node | Einsum
    covered: tuple[fx.Node, ...] = ()
    combine: capacity.Combine | None = None


def recognise(node: fx.Node) -> Experts | None:
    """The mixture of which `node` is the weighted sum, `None` for other nodes."""
    value = tensor_value(node)
    if value is None or value.dtype not in DTYPES:
        return None
    if (over_slots := capacity.combine_of(node)) is not None:
        combine, given = over_slots
        return Experts(node, combine.weights, given, combine=combine)
    if value.dim() < capacity.ROWS:
        return None
    if operator_name(node) == "sum":
        return _product_and_sum(node)
    found = einsum_of(node)
    if found is None or len(found.output) < capacity.ROWS:
        return None
    token, channel = found.output[:-1], found.output[-1]
    gates = [(n, at) for n, at in found.operands if at[:-1] == token and at[-1] not in found.output]
    if len(gates) > 1:  # in a product of rows and gates with matrices both have the same place
        gates = [(n, at) for n, at in gates if is_decided(n)]
    if len(gates) != 1:
        return None
    gate, expert = gates[0][0], gates[0][1][-1]
    rest = tuple(pair for pair in found.operands if pair[0] is not gate)
    if len(rest) == 1 and rest[0][1] == token + expert + channel:
        return Experts(node, gate, rest[0][0])
    if len(rest) == 2:
        return Experts(node, gate, Einsum(rest, token + expert + channel))
    return None


def _product_and_sum(node: fx.Node) -> Experts | None:
    """`(gate.unsqueeze(-1) * results).sum(1)`."""
    product = node.args[0]
    dims = argument(node, 1, "dim")
    value = tensor_value(product)
    if value is None or not isinstance(product, fx.Node) or argument(node, 2, "keepdim", False):
        return None
    rank = value.dim()
    (dim,) = dims if isinstance(dims, list | tuple) and len(dims) == 1 else (dims,)
    if rank <= capacity.ROWS or dim not in (rank - 2, -2):
        return None
    if operator_name(product) != "mul" or len(product.users) != 1:
        return None
    for column, results in (product.args[:2], product.args[1::-1]):
        if not isinstance(column, fx.Node) or not isinstance(results, fx.Node):
            continue
        shape = tensor_value(results)
        is_column = operator_name(column) == "unsqueeze" and argument(column, 1, "dim") in (-1, rank - 1)
        if is_column and shape is not None and shape.dim() == rank:
            gate: Any = column.args[0]
            return Experts(node, gate, results, (column, product))
    return None


def mark_of(match: Experts) -> Mark | None:
    """The mark of the gate by a rule."""
    mark = info(match.gate).mark
    return mark if isinstance(mark, Mark) and mark.role == "gate" and not mark.derived else None


def experts_region(match: Experts, mark: Mark) -> Region | str:
    """The region of a mixture, or why there is none."""
    value = tensor_value(match.node)
    assert value is not None, "a mixture is a tensor"
    combine = match.combine
    assert combine is not None, "other mixtures go over the general road"
    rows = Rows(match.node, value.dtype, combine)
    text = program_text(match, rows)
    if text is None:
        return rows.why or "what its experts compute is not made of products, functions of entries and biases"
    gate = rows.gate()
    if isinstance(gate, str):
        return gate
    covered = list(dict.fromkeys([*rows.covered, *match.covered, match.node]))
    if leaves := [n for n in covered[:-1] if any(user not in covered for user in n.users)]:
        return f"{leaves[0].name} is read elsewhere too"
    matrix = Matrix(
        f"A_{gate.node.name}", None, None, None, None, gate.node, False, value.dtype, mark,
        packed=BY_EXPERT if mark.format == "auto" else None, places=gate.places, parts=gate.parts,
    )  # fmt: skip
    dtype = DTYPES[value.dtype]
    declared = {"G": Operand(matrix.format, dtype, 0.0, result_index_dtypes(matrix.format))}
    declared |= {
        name: Operand(Format("dense", rank=operand.meta["val"].dim()), dtype)
        for operand, name in rows.names.items()
    }
    program = declare(parse(text), declared, ("Y",))
    named: dict[str, Any] = {name: operand for operand, name in rows.names.items()} | {"G": matrix}
    operands = {named[short].name: named[short] for short in program.inputs}
    modes = list(combine.order[: combine.groups + 1])
    covered = [*covered[:-1], *capacity.as_rows(covered[-1], match.gate, modes)]
    names = {operand.name: short for short, operand in named.items()} | {covered[-1].name: "Y"}
    statement = (covered[-1], ("t", "o"), Const(0))
    notes = [MIXTURE]
    if matrix.places is None:
        notes.append(f"gradients are of all experts: {match.gate.name} is 0 where its values say so")
    return Region([statement], operands, covered, notes, program, names)


def program_text(match: Experts, rows: "Rows") -> str | None:
    """The statements of a mixture in index notation, `None` where its experts compute something else."""
    found = match.results
    if isinstance(found, fx.Node):
        inner = einsum_of(found)
        if inner is None or len(inner.operands) != 2:
            return None
        rows.covered.append(found)
        found = inner
    modes = rows.combine.modes
    if len(found.output) != len(modes):
        return None
    names = dict(zip(found.output, modes, strict=True))
    summed = {letter for _, at in found.operands for letter in at} - set(names)
    own = {letter for letter, mode in names.items() if mode in ("e", "o")}
    matrices = [(n, at) for n, at in found.operands if set(at) == own | summed]
    if len(summed) != 1 or len(matrices) != 1 or len(found.operands) != 2:
        return None
    names[summed.pop()] = "h"
    ((matrix, at),) = matrices
    (operand, letters), *_ = (pair for pair in found.operands if pair[0] is not matrix)
    last = rows.leaf(matrix, tuple(names[letter] for letter in at))
    inside = rows.read(operand, tuple(names[letter] for letter in letters))
    if inside is None:
        return None
    if "sum(" not in inside:
        return f"Y[t,o] += G[t,e] * {inside} * {last}"
    return f"H[t,e,h] = G[t,e] * {inside}\nY[t,o] += H[t,e,h] * {last}"
