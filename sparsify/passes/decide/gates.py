"""Gates of experts as sparse operands, and the regions that read them.

In: a node `%gate` [.., tokens, experts] that a rule marks as a gate, and the cut of a mixture. Out: an operand that
lists tokens by expert, decided in each call, and the region with one mode for all tokens, `G[t,e]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.capture.draft import Mark
from sparsify.passes.decide.cut import Cut
from sparsify.passes.decide.textbook import unified
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.lift.experts.capacity import gate_of_slots, in_groups
from sparsify.passes.lift.experts.gate import places
from sparsify.passes.lift.experts.mixture import BY_EXPERT, MIXTURE
from sparsify.passes.program.model import ModelProgram, Refusal, sizes_of
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.passes.rewrite.slots import Slots, send_back, slots_of
from sparsify.storage.format import Format

aten: Final = torch.ops.aten
MATRIX: Final = 2


def gate_operand(node: fx.Node) -> Matrix | None:
    """A node that a rule marks as a gate, as a sparse operand; `None` for other nodes.

    Programs leave out modes of extent 1; the pattern of a gate with groups has a level for each mode.
    """
    mark, value = info(node).mark, tensor_value(node)
    if not isinstance(mark, Mark) or mark.role != "gate" or mark.derived or value is None:
        return None
    rank = sum(size != 1 for size in sizes_of(value))
    if node.op != "call_function" or not value.dtype.is_floating_point or not rank or 0 in sizes_of(value):
        return None
    form = Format(", ".join(["dense"] * (rank - 1) + ["compressed"]))
    is_own = mark.format != "auto" and value.dim() == rank == MATRIX
    return Matrix(
        f"A_{node.name}", None, None, None, None, node, False, value.dtype, mark,
        packed=None if is_own else BY_EXPERT if rank <= MATRIX else form,
    )  # fmt: skip


def gates_of_slots(program: ModelProgram, gates: Sequence[str]) -> dict[str, fx.Node | None]:
    """By weights of slots the gate that takes their place in a program; `None` where a reason is noted why none does.

    `y[s,o] = sum(e, c, C[s,e,c] * z[e,c,o]) -> y[s,o] = sum(e, G[s,e] * z[s,e,o])`.
    """
    found: dict[str, fx.Node | None] = {}
    for name in gates:
        before = dict(program.statements)
        slots, weights = slots_of(program, name), program.nodes[name]
        gate = gate_in_graph(program, slots, weights) if isinstance(slots, Slots) else slots
        if isinstance(slots, Slots) and isinstance(gate, fx.Node):
            found[name] = gate
            send_back(program, slots, gate)
            continue
        program.statements = before
        is_of_tokens = slots is None or (isinstance(slots, Slots) and slots.weighting.token is None)
        if not is_of_tokens and isinstance(gate, str):
            found[name] = None
            set_info(weights, dense_reason=gate)
    return found


def gate_in_graph(program: ModelProgram, slots: Slots, weights: fx.Node) -> fx.Node | str:
    """The gate of slots as a node, or why there is none."""
    assert slots.choice is not None, "tokens are sent to slots"
    choice, at = slots.choice
    if choice not in program.nodes:
        return f"{choice} is no tensor of the model"
    roles = [slots.weighting.roles[str(index)] for index in slots.weighting.weights.indices]
    try:
        orders = slots.order(weights, roles), slots.order(program.nodes[choice], at)
    except Refusal as refusal:
        return str(refusal)
    if len(orders[0]) != len(orders[1]):
        return f"{choice} has other modes than {weights.name}"
    return gate_of_slots(weights, program.nodes[choice], *orders)


@dataclass
class Tokens:
    """A mixture of experts with one mode for all tokens.

    Attributes:
        gate: the node of the gate, [.., tokens, experts]; `None` for a cut without one.
        statements: of the cut, with a mode t in place of all modes of tokens: of none, where there is one token.
        flat: the tensors that have it, as they are in the program.
    """

    gate: fx.Node | None
    statements: list[Assign]
    flat: set[str]

    def rows(self, node: fx.Node) -> fx.Node:
        """A tensor [.., tokens, ..] with one mode for all tokens."""
        return node if self.groups == 1 else call(aten.flatten.using_ints, node, 0, self.groups - 1)

    @property
    def weights(self) -> fx.Node:
        """The node of the gate."""
        assert self.gate is not None, "a mixture has a gate"
        return self.gate

    @property
    def groups(self) -> int:
        """The number of modes tokens have in the graph."""
        return len(self.weights.meta["val"].shape) - 1

    def operand(self, node: fx.Node, readers: list[fx.Node]) -> fx.Node:
        """An operand with one mode for all tokens; the nodes of a region read it through that."""
        if self.groups == 1:
            return node
        with node.graph.inserting_after(max(node, self.weights)):
            rows = self.rows(node)
        with node.graph.inserting_after(rows):
            whole = self.in_groups(rows)
        for reader in readers:
            reader.replace_input_with(node, whole)
        return rows

    def result(self, node: fx.Node) -> fx.Node:
        """A result with one mode for all tokens; what reads it gets the modes back."""
        if self.groups == 1:
            return node
        readers = list(node.users)
        with node.graph.inserting_after(node):
            rows = self.rows(node)
        with node.graph.inserting_after(rows):
            whole = self.in_groups(rows)
        for reader in readers:
            reader.replace_input_with(node, whole)
        set_info(rows, shown=node)
        return rows

    def in_groups(self, rows: fx.Node) -> fx.Node:
        """Rows of tokens with all modes of tokens again."""
        return call(in_groups, rows, self.weights, list(range(self.groups)))

    def matrix(self, matrix: Matrix) -> Matrix:
        """The gate as a matrix [tokens, experts]."""
        decided = info(self.weights).decided
        chosen = places(self.weights) if decided is None else decided.places
        own = None if matrix.mark.format != "auto" else BY_EXPERT
        if self.groups == 1:
            return replace(matrix, places=chosen, packed=own, parts=() if decided is None else decided.parts)
        with self.weights.graph.inserting_after(self.weights):
            rows = self.rows(self.weights)
        used = None
        if chosen is not None:
            with chosen.graph.inserting_after(chosen):
                used = rows if chosen is self.weights else self.rows(chosen)
        parts = (self.weights,) if chosen is None else (self.weights, chosen)
        parts = parts if decided is None else decided.parts
        return replace(matrix, dense=rows, places=used, packed=own, parts=tuple(dict.fromkeys(parts)))


def tokens_of(program: ModelProgram, found: Cut, gates: Sequence[str]) -> Tokens | str:
    """A mixture with one mode for all tokens, or why it has none; a cut without a gate as it is.

    `r[b,t,e,h] = g[b,t,e] * sum(d, x[b,t,d] * w[e,h,d]) -> r[t,e,h] = g[t,e] * sum(d, x[t,d] * w[e,h,d])`.
    """
    if not gates:
        return Tokens(None, found.statements, set())
    if len(gates) > 1:
        return "several gates are read"
    (gate,), statements = gates, unified(program, found.statements)
    reads = {access for s in statements for access in find(s.value, Access) if access.tensor == gate}
    if len(reads) != 1:
        return f"{gate} is read at several places"
    *tokens, expert = next(iter(reads)).indices
    rows = [statement.target.tensor for statement in statements if expert in statement.target.indices]
    if len(rows) > 1:
        return f"{rows[0]} is what experts computed, from which they compute a product"
    node, own = program.nodes[gate], {statement.target.tensor for statement in statements}
    t = Index(program.index(prod(program.extents[str(index)] for index in tokens)))
    flat = set[str]()

    def merged(access: Access) -> Access:
        at = access.indices
        is_inside = (
            set(tokens) <= set(at) if tokens else access.tensor in own or is_of_tokens(program, access, node)
        )
        if access.tensor != gate and not is_inside and set(tokens).isdisjoint(at):
            return access
        rest = tuple(index for index in at if index not in tokens)
        is_first = at == (*tokens, *rest)
        is_whole = access.tensor in own - set(found.outputs) or access.tensor == gate
        if (not is_inside and access.tensor != gate) or not is_first:
            raise Refusal(
                f"{access.tensor} is neither the same for all tokens nor has a row for each of them"
            )
        if not is_whole and not is_of_tokens(program, access, node):
            raise Refusal(f"{access.tensor} has other modes of tokens than {gate}")
        flat.add(access.tensor)
        return Access(access.tensor, (t, *rest))

    def visit(part: Node) -> Node:
        return merged(part) if isinstance(part, Access) else map_children(part, visit)

    try:
        made = [visit(statement) for statement in statements]
    except Refusal as refusal:
        return str(refusal)
    return Tokens(node, made, flat)  # type: ignore[arg-type]


def is_of_tokens(program: ModelProgram, access: Access, gate: fx.Node) -> bool:
    """Whether a tensor of the graph starts with the modes of a gate's tokens, and has no others of extent 1."""
    if access.tensor not in program.nodes:
        return False
    shape, tokens = sizes_of(program.nodes[access.tensor].meta["val"]), sizes_of(gate.meta["val"])[:-1]
    rest = shape[len(tokens) :]
    known = [program.known(size) for size in shape[: len(tokens)]]
    return known == [program.known(size) for size in tokens] and 1 not in rest and bool(rest)


def finish_mixture(region: Region) -> None:
    """Notes on a region of a mixture what decides its gate."""
    (gate,) = (matrix for matrix in region.matrices if matrix.mark.role == "gate")
    region.notes.append(MIXTURE)
    node = gate.parts[0] if gate.parts else gate.dense
    assert node is not None, "gates are dense tensors"
    set_info(node, dense_reason=None)  # it is computed as it was, and then read sparse
    if gate.places is None:
        region.notes.append(f"gradients are of all experts: {node.name} is 0 where its values say so")
