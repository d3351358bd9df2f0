"""Gates of experts as sparse operands, and the regions over gates.

In: a node `%gate` [.., tokens, experts] marked by a rule, and the cut of a mixture. Out: an operand that lists tokens
by expert, decided in each call, and the region with one mode for all tokens, `G[t,e]`.
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
    """A node marked as a gate, as a sparse operand; `None` for other nodes.

    Programs omit modes of extent 1; the pattern of a gate with groups has one level per mode.
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
    """The gate that replaces the weights of slots, by their name; `None` after a recorded refusal.

    `y[s,o] = sum(e, c, C[s,e,c] * z[e,c,o]) -> y[s,o] = sum(e, G[s,e] * z[s,e,o])`.
    """
    gate_of: dict[str, fx.Node | None] = {}
    for name in gates:
        before = dict(program.statements)
        slots, weights = slots_of(program, name), program.nodes[name]
        gate = gate_in_graph(program, slots, weights) if isinstance(slots, Slots) else slots
        if isinstance(slots, Slots) and isinstance(gate, fx.Node):
            gate_of[name] = gate
            send_back(program, slots, gate)
            continue
        program.statements = before
        is_of_tokens = slots is None or (isinstance(slots, Slots) and slots.weighting.token is None)
        if not is_of_tokens and isinstance(gate, str):
            gate_of[name] = None
            set_info(weights, dense_reason=gate)
    return gate_of


def gate_in_graph(program: ModelProgram, slots: Slots, weights: fx.Node) -> fx.Node | str:
    """The gate of slots as a node, or the refusal."""
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
        gate: node of the gate, [.., tokens, experts]; `None` for a cut without one.
        statements: statements of the cut, with a mode t in place of all token modes (none for a single token).
        flat: tensors with the mode t, by their names in the program.
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
        """An operand with one mode for all tokens, read by the region's nodes."""
        if any(units := units_around(node, self.weights)):
            return self.without_units(node, *units, readers)
        if self.groups == 1:
            return node
        with node.graph.inserting_after(max(node, self.weights)):
            rows = self.rows(node)
        with node.graph.inserting_after(rows):
            grouped = self.in_groups(rows)
        for reader in readers:
            reader.replace_input_with(node, grouped)
        return rows

    def result(self, node: fx.Node) -> fx.Node:
        """A result with one mode for all tokens; its readers get the original modes."""
        if self.groups == 1:
            return node
        readers = list(node.users)
        with node.graph.inserting_after(node):
            rows = self.rows(node)
        with node.graph.inserting_after(rows):
            grouped = self.in_groups(rows)
        for reader in readers:
            reader.replace_input_with(node, grouped)
        set_info(rows, shown=node)
        return rows

    def without_units(self, node: fx.Node, before: int, behind: int, readers: list[fx.Node]) -> fx.Node:
        """An operand [1, .., tokens, 1, ..] as [tokens, ..]; the region's nodes read a view with all modes."""
        with node.graph.inserting_after(max(node, self.weights)):
            rows = call(aten.flatten.using_ints, node, 0, before + self.groups + behind - 1)
        with node.graph.inserting_after(rows):
            grouped = self.in_groups(rows) if self.groups > 1 else rows
        for mode in (*(self.groups,) * behind, *(0,) * before):
            with node.graph.inserting_after(grouped):
                grouped = call(aten.unsqueeze.default, grouped, mode)
        for reader in readers:
            reader.replace_input_with(node, grouped)
        set_info(rows, shown=node)
        return rows

    def in_groups(self, rows: fx.Node) -> fx.Node:
        """Rows of tokens, reshaped to all modes of tokens."""
        return call(in_groups, rows, self.weights, list(range(self.groups)))

    def matrix(self, matrix: Matrix) -> Matrix:
        """The gate as a matrix [tokens, experts]."""
        decided = info(self.weights).decided
        chosen = places(self.weights) if decided is None else decided.places
        packed_format = None if matrix.mark.format != "auto" else BY_EXPERT
        if self.groups == 1:
            return replace(
                matrix, places=chosen, packed=packed_format, parts=() if decided is None else decided.parts
            )
        with self.weights.graph.inserting_after(self.weights):
            rows = self.rows(self.weights)
        used = None
        if chosen is not None:
            with chosen.graph.inserting_after(chosen):
                used = rows if chosen is self.weights else self.rows(chosen)
        parts = (self.weights,) if chosen is None else (self.weights, chosen)
        parts = parts if decided is None else decided.parts
        return replace(
            matrix, dense=rows, places=used, packed=packed_format, parts=tuple(dict.fromkeys(parts))
        )


def tokens_of(program: ModelProgram, cut: Cut, gates: Sequence[str]) -> Tokens | str:
    """A mixture with one mode for all tokens, or the refusal; a cut without a gate is unchanged.

    `r[b,t,e,h] = g[b,t,e] * sum(d, x[b,t,d] * w[e,h,d]) -> r[t,e,h] = g[t,e] * sum(d, x[t,d] * w[e,h,d])`.
    """
    if not gates:
        return Tokens(None, cut.statements, set())
    if len(gates) > 1:
        return "several gates are read"
    (gate,), statements = gates, unified(program, cut.statements)
    reads = {access for s in statements for access in find(s.value, Access) if access.tensor == gate}
    if len(reads) != 1:
        return f"{gate} is read at several places"
    *tokens, expert = next(iter(reads)).indices
    rows = [statement.target.tensor for statement in statements if expert in statement.target.indices]
    if len(rows) > 1:
        return f"{rows[0]} is what experts computed, from which they compute a product"
    node, computed = program.nodes[gate], {statement.target.tensor for statement in statements}
    t = Index(program.index(prod(program.extents[str(index)] for index in tokens)))
    flat = set[str]()

    def merged(access: Access) -> Access:
        at = access.indices
        is_inside = (
            set(tokens) <= set(at)
            if tokens
            else access.tensor in computed or is_of_tokens(program, access, node)
        )
        if access.tensor != gate and not is_inside and set(tokens).isdisjoint(at):
            return access
        rest = tuple(index for index in at if index not in tokens)
        is_first = at == (*tokens, *rest)
        is_whole = access.tensor in computed - set(cut.outputs) or access.tensor == gate
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
        flattened = [visit(statement) for statement in statements]
    except Refusal as refusal:
        return str(refusal)
    return Tokens(node, flattened, flat)  # type: ignore[arg-type]


def is_of_tokens(program: ModelProgram, access: Access, gate: fx.Node) -> bool:
    """Whether a tensor's modes are a gate's tokens, possibly between modes of extent 1, and then larger modes."""
    if access.tensor not in program.nodes:
        return False
    node = program.nodes[access.tensor]
    before, behind = units_around(node, gate)
    tokens = sizes_of(gate.meta["val"])[:-1]
    shape = sizes_of(node.meta["val"])[before:]
    rest = shape[len(tokens) + behind :]
    leading = [program.representative(size) for size in shape[: len(tokens)]]
    return leading == [program.representative(size) for size in tokens] and 1 not in rest and bool(rest)


def units_around(node: fx.Node, gate: fx.Node) -> tuple[int, int]:
    """The numbers of modes of extent 1 before and behind the tokens of a tensor.

    For a gate [n, e], `x[1, n, d]` has one before them; `x[n, 1, d]`, n texts of one token, has one behind them.
    """
    shape, tokens = sizes_of(node.meta["val"]), sizes_of(gate.meta["val"])[:-1]
    before = 0
    while len(shape) - before > len(tokens) + 1 and shape[before] == 1:
        if shape[before : before + len(tokens)] == tokens:
            break
        before += 1
    behind = 0
    while len(shape) - before - behind > len(tokens) + 1 and shape[before + len(tokens) + behind] == 1:
        behind += 1
    return before, behind


def finish_mixture(region: Region) -> None:
    """Adds the notes about the gate to a region of a mixture."""
    (gate,) = (matrix for matrix in region.matrices if matrix.mark.role == "gate")
    region.notes.append(MIXTURE)
    node = gate.parts[0] if gate.parts else gate.dense
    assert node is not None, "gates are dense tensors"
    set_info(node, dense_reason=None)  # computed by its own node, then read sparse
    if gate.places is None:
        region.notes.append(f"gradients are of all experts: {node.name} is 0 where its values say so")
