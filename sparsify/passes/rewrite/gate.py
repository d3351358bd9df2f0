"""Normal form of mixtures of experts: rows on the pattern of a gate, and one product over the rows.

In: `r[t,e,h] = where(stored(g[t,e]), silu(u[t,e,h+0]) * u[t,e,h+8], 0); y[t,o] = sum(e, g[t,e] * (sum(h, r[t,e,h] *
v[e,o,h]) + b[e,o]))`. Out: `r[t,e,h] = g[t,e] * (silu(sum(d, x[t,d] * w[e,0,h,d])) * sum(d, x[t,d] * w[e,1,h,d]));
y_biases[t,o] = sum(e, g[t,e] * b[e,o]); y[t,o] = y_biases[t,o] + sum(e, h, r[t,e,h] * v[e,o,h])`.

The rows have been restricted by `demand`. Each rule is one function.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import ModelProgram, Size
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.simplify import factors, is_multilinear, join_sums, simplify

aten: Final = torch.ops.aten


def restricted(program: ModelProgram, storage: Storage, gates: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The gates, and the statements computed only at a gate's stored coordinates, with the gate's modes."""
    modes_of = {name: tuple(range(len(program.sizes[name]))) for name in gates if name in program.sizes}
    for name, statement in program.statements.items():
        if not storage.is_sparse(name) or sums_choices(statement, modes_of):
            continue
        mode_of = {index: mode for mode, index in enumerate(statement.target.indices)}
        for access in find(statement.value, Access):
            modes = [mode_of.get(access.indices[mode]) for mode in modes_of.get(access.tensor, ())]
            if modes and all(mode is not None for mode in modes):
                modes_of[name] = tuple(mode for mode in modes if mode is not None)
                break
    return modes_of


def sums_choices(statement: Assign, restricted: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a statement reduces a mode of a gate."""
    bound = {Index(name) for reduction in find(statement.value, Reduce) for name in reduction.indices}
    read = [access for access in find(statement.value, Access) if access.tensor in restricted]
    return any(access.indices[mode] in bound for access in read for mode in restricted[access.tensor])


def results_of(program: ModelProgram, storage: Storage, gates: Collection[str]) -> set[str]:
    """The results of mixtures: sums over tensors restricted by gates."""
    modes_of = restricted(program, storage, gates)
    return {name for name, statement in program.statements.items() if sums_choices(statement, modes_of)}


def split_biases(program: ModelProgram, gates: Collection[str]) -> set[fx.Node]:
    """`y = sum(e, g * (z + b)) -> y = sum(e, g * z) + sum(e, g * b)` in the graph; the nodes of the second sums.

    The second sum has one number per expert where the first one has rows and matrices: torch computes the second sum
    for all tokens at once.
    """
    readers, bias_sums = program.readers(), set[fx.Node]()
    for name, statement in list(program.statements.items()):
        match statement.value:
            case Reduce("sum", (expert,), Access(product, indices)) if product in program.statements:
                weighted = substitute(
                    program.statements[product].value,
                    dict(zip(map(str, program.statements[product].target.indices), indices, strict=True)),
                )
            case Reduce("sum", (expert,), weighted):
                pass
            case _:
                continue
        match weighted:
            case Call("mul", (Access(gate) as chosen, Access(summed, at))) if gate in gates:
                pass
            case Call("mul", (Access(summed, at), Access(gate) as chosen)) if gate in gates:
                pass
            case _:
                continue
        inner = program.statements.get(summed)
        if inner is None or len(readers[summed]) != 1 or not isinstance(inner.value, Call):
            continue
        names = dict(zip(map(str, inner.target.indices), at, strict=True))
        match substitute(inner.value, names):
            case Call("add", (Access() as left, Access() as right)):
                bias_sum = put_biases_behind(program, name, chosen, (left, right), expert)
                bias_sums |= {bias_sum} if bias_sum is not None else set()
    return bias_sums


def put_biases_behind(
    program: ModelProgram, name: str, gate: Access, terms: tuple[Access, Access], expert: str
) -> fx.Node | None:
    """Splits a sum over experts in the graph; returns the node that sums the tokens' common term, if any."""
    sums_of = [term for term in terms if is_sum(program, term)]
    if len(sums_of) != 1:
        return None
    products, bias = terms if terms[0] is sums_of[0] else terms[::-1]
    tokens = {index for index in gate.indices if index != Index(expert)}
    node, nodes = program.nodes.get(name), program.nodes
    is_bias = tokens.isdisjoint(bias.indices) and {Index(expert), *tokens} <= set(products.indices)
    if node is None or not is_bias or not all(isinstance(index, Index) for index in bias.indices):
        return None
    if not {products.tensor, bias.tensor, gate.tensor} <= nodes.keys():
        return None
    target = program.statements[name].target
    operands = [nodes[gate.tensor], nodes[products.tensor], node]
    shapes = [n.meta["val"].shape for n in operands]
    last = gate.indices[-1], target.indices[-1]
    *groups, experts = shapes[0]
    channels = shapes[2][-1]
    expected_shapes = [[*groups, experts], [*groups, experts, channels], [*groups, channels]]
    is_last = products.indices[-2:] == last
    if not is_last or [[*map(str, shape)] for shape in shapes] != [
        [*map(str, shape)] for shape in expected_shapes
    ]:
        return None
    modes = dict(zip(last, (experts, channels), strict=True))
    t = "abcdefghijklm"[: len(groups)]
    with node.graph.inserting_before(node):
        sums = call(aten.einsum.default, f"{t}y,{t}yz->{t}z", operands[:2])
        matrix = call(
            aten.reshape.default,
            nodes[bias.tensor],
            [n if i in bias.indices else 1 for i, n in modes.items()],
        )
        matrix = call(aten.expand.default, matrix, list(modes.values()))
        if len(groups) == 1:
            added = total = call(aten.addmm.default, sums, operands[0], matrix)
        else:
            added = call(aten.matmul.default, operands[0], matrix)
            total = call(aten.add.Tensor, sums, added)
    for result in (sums, total):
        result.meta.update({key: node.meta[key] for key in ("nn_module_stack",) if key in node.meta})
    node.replace_all_uses_with(total)
    erase(node)
    return added


def is_sum(program: ModelProgram, access: Access) -> bool:
    """Whether a statement reduces something for each entry of a tensor."""
    statement = program.statements.get(access.tensor)
    return statement is not None and bool(find(statement.value, Reduce))


def erase(node: fx.Node) -> None:
    """Erases an unread node from its graph, and its inputs that become unread."""
    read = node.all_input_nodes
    node.graph.erase_node(node)
    for before in read:
        if not before.users and before.op == "call_function":
            erase(before)


@dataclass(frozen=True)
class Part:
    """`x[8 * number + h]`, or `x[count * h + number]` for alternating parts, of a mode with `count` parts."""

    index: Index
    number: int
    count: int
    alternates: bool


def part_of(program: ModelProgram, index: Expr, extent: Size) -> Part | None:
    """The part of a mode addressed by an index; `None` unless the mode divides into equal parts."""
    match index:
        case Call("add", (Call("mul", (Const(int(step)), Index(name))), Const(int(start)))):
            pass
        case Call("add", (Call("mul", (Index(name), Const(int(step)))), Const(int(start)))):
            pass
        case Call("add", (Index(name), Const(int(start)))):
            step = 1
        case _:
            return None
    part_extent = program.representative(program.extents[name])
    if (
        not isinstance(part_extent, int)
        or not isinstance(extent, int)
        or part_extent < 1
        or extent % part_extent
    ):
        return None
    count = extent // part_extent
    number, rest = (start, 0) if step > 1 else divmod(start, part_extent)
    if rest or step not in (1, count) or not 0 <= number < count:
        return None
    return Part(Index(name), number, count, step > 1)


def inline_parts(program: ModelProgram, storage: Storage, outside_reads: Collection[str]) -> None:
    """`u[t,e,c] = f(c); r[t,e,h] = where(stored(g), u[t,e,h+0] * u[t,e,h+8], 0) -> .. f(h+0) * f(h+8) ..`, in place.

    Each entry of u is read at most once.
    """
    for name in reversed(list(program.statements)):
        readers = sorted(program.readers().get(name, ()))
        if name in outside_reads or storage.is_sparse(name) or not readers:
            continue
        read = [a for r in readers for a in find(program.statements[r].value, Access) if a.tensor == name]
        if not all(is_restricted(program.statements[reader]) for reader in readers):
            continue
        if not are_parts(program, name, read):
            continue
        for reader in readers:
            consumer = program.statements[reader]
            value = simplify(placed(program, consumer.value, program.statements[name]))
            program.statements[reader] = replace(consumer, value=value)
        del program.statements[name]


def is_restricted(statement: Assign) -> bool:
    """Whether a statement has the form `where(stored(g), .., 0)`."""
    match statement.value:
        case Call("where", (Stored(), _, Const(0))):
            return True
    return False


def are_parts(program: ModelProgram, name: str, read: list[Access]) -> bool:
    """Whether accesses read different parts of one mode of a tensor, and all other modes whole."""
    parts = set[tuple[int, int, bool, int]]()
    for access in read:
        split = [mode for mode, index in enumerate(access.indices) if not isinstance(index, Index)]
        if len(split) != 1:
            return False
        part = part_of(program, access.indices[split[0]], program.sizes[name][split[0]])
        if part is None:
            return False
        parts.add((split[0], part.count, part.alternates, part.number))
    return len(parts) == len(read) and len({part[:3] for part in parts}) == 1


def absorb(program: ModelProgram, name: str, gates: Collection[str], outside_reads: Collection[str]) -> None:
    """`r = where(stored(g), f, 0); y = sum(e, h, g * r * v) -> r = g * f; y = sum(e, h, r * v)`, in place."""
    for product in find(program.statements[name].value, Reduce):
        parts = list(factors(product.body))
        gate = next((p for p in parts if isinstance(p, Access) and p.tensor in gates), None)
        if not is_multilinear(product) or gate is None:
            continue
        for rows in parts:
            if (
                not isinstance(rows, Access)
                or rows.tensor not in program.statements
                or rows.tensor in outside_reads
            ):
                continue
            producer = program.statements[rows.tensor]
            if program.readers()[rows.tensor] != {name}:
                continue
            back = dict(zip(rows.indices, producer.target.indices, strict=True))
            match producer.value:
                case Call("where", (Stored(Access(tensor, at)), value, Const(0))) if (
                    tensor == gate.tensor and at == tuple(back.get(index) for index in gate.indices)
                ):
                    program.statements[rows.tensor] = replace(
                        producer, value=Call("mul", (Access(tensor, at), value))
                    )
                    rest = [part for part in parts if part is not gate]
                    replaced(program, name, product, product_of(product, rest))
                    return


def product_of(product: Reduce, parts: list[Expr]) -> Reduce:
    """A sum of a product of given factors."""
    body = parts[0]
    for part in parts[1:]:
        body = Call("mul", (body, part))
    return replace(product, body=body)


def replaced(program: ModelProgram, name: str, old: Expr, new: Expr) -> None:
    """Replaces an expression in a statement by another one."""

    def visit(node: Node) -> Node:
        return new if node is old else map_children(node, visit)

    value = visit(program.statements[name].value)
    assert isinstance(value, Expr)
    program.statements[name] = replace(program.statements[name], value=value)


def join(program: ModelProgram, name: str, outside_reads: Collection[str]) -> None:
    """`sum(e, g * where(stored(g), sum(h, r * v), 0)) -> sum(e, h, g * r * v)`, in place."""

    def visit(node: Node) -> Node:
        return join_sums(map_children(node, visit))

    statement, readers = program.statements[name], program.readers()
    value: Node = statement.value
    for read in program.reads(name):
        producer = program.statements.get(read)
        if (
            producer is None
            or read in outside_reads
            or readers[read] != {name}
            or not is_product(producer.value)
        ):
            continue
        value = placed(program, value, producer)  # type: ignore[arg-type]
        del program.statements[read]
    value = visit(simplify(value))  # type: ignore[arg-type]
    assert isinstance(value, Expr)
    program.statements[name] = replace(statement, value=value)


def is_product(value: Expr) -> bool:
    """Whether an expression is a sum of products, also under `where(stored(g), .., 0)` or times a factor."""
    match value:
        case Reduce():
            return is_multilinear(value)
        case Call("where", (Stored(), body, Const(0))):
            return is_product(body)
        case Call("mul", (left, right)):
            return (is_product(left) and isinstance(right, Access)) or (
                is_product(right) and isinstance(left, Access)
            )
    return False


def read_parts(program: ModelProgram, names: Collection[str]) -> None:
    """`w[e,h+8,d] -> w_parts[e,1,h,d]`, a view of a leaf with a mode for the parts, in place.

    Vector lanes run over a whole mode; alternating parts are the last of the two modes.
    """
    for name in names:
        statement = program.statements[name]

        def visit(node: Node) -> Node:
            if not isinstance(node, Access) or node.tensor in program.statements:
                return map_children(node, visit)
            for mode, index in enumerate(node.indices):
                size = program.sizes[node.tensor][mode]
                part = None if isinstance(index, Index) else part_of(program, index, size)
                if part is not None and part.count > 1:
                    view = parts_of(program.source[node.tensor], mode, part)
                    program.nodes[view.name] = view
                    read = (Const(part.number), part.index)
                    at = (
                        *node.indices[:mode],
                        *(read[::-1] if part.alternates else read),
                        *node.indices[mode + 1 :],
                    )
                    return Access(program.leaf(view), at)
            return node

        value = visit(statement.value)
        assert isinstance(value, Expr)
        program.statements[name] = replace(statement, value=value)


def parts_of(node: fx.Node, mode: int, part: Part) -> fx.Node:
    """A view of a tensor with a mode split into parts; alternating parts are the last mode, others the first."""
    value = node.meta["val"]
    program_modes = [
        number for number, extent in enumerate(value.shape) if type(extent) is not int or extent != 1
    ]
    mode = program_modes[mode]  # programs leave out modes of extent 1
    parts = part.count, value.shape[mode] // part.count
    shape = [
        *value.shape[:mode], *(parts[::-1] if part.alternates else parts), *value.shape[mode + 1 :]
    ]  # fmt: skip
    view_of = next((u for u in node.users if operator_name(u) == "view" and info(u).parts == shape), None)
    if view_of is not None:
        return view_of
    with node.graph.inserting_after(node):
        view = call(torch.ops.aten.reshape.default, node, shape)
    set_info(view, parts=shape)
    return view
