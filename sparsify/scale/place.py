"""The graph of a model for one part: exchanges go where an operator reads rows that other processes have.

In: a captured graph, and how its inputs lie. Out: `place(...)`, a new graph over local rows with `halo_exchange` before
gathers by columns, `halo_reduce` behind scatters by columns, `all_reduce_sum` behind sums over rows.

Each operator has a rule in `RULES`, from the placements of its operands to that of its result; pointwise operators have
one in common. An operator without a rule that reads all of a sharded mode is refused: its local result would be wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from sparsify.errors import UnsupportedOperatorError
from sparsify.passes.graph.node_info import info
from sparsify.scale.dropout import drop_rows
from sparsify.scale.placement import ANY, NODES, REPLICATED, Placement, Size, common, joined

aten = torch.ops.aten


@dataclass
class Placing:
    """A graph that is placed, node by node.

    Attributes:
        graph: the new graph.
        plan: the number of the halo plan.
        halo: how many rows of others this process reads.
        nodes: how many nodes the whole graph has.
        placements: of the nodes of the old graph: how tensors lie, what sizes count; nothing of other values.
        copies: by node of the old graph that of the new one.
        exchanged: by node of the old graph its rows with the halo, exchanged once.
    """

    graph: fx.Graph
    plan: int
    halo: int
    nodes: int
    placements: dict[fx.Node, Placement | Size] = field(default_factory=dict)
    copies: dict[fx.Node, Any] = field(default_factory=dict)
    exchanged: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def of(self, value: Any) -> Placement:
        """The placement of a tensor; a tensor that is not sharded is replicated."""
        found = self.placements.get(value) if isinstance(value, fx.Node) else None
        return found if isinstance(found, Placement) else REPLICATED

    def size(self, value: Any) -> Size | None:
        """The rows that a size counts, None for plain numbers."""
        found = self.placements.get(value) if isinstance(value, fx.Node) else None
        return found if isinstance(found, Size) else None

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call in the new graph."""
        return self.graph.call_function(target, args, kwargs)

    def copied(self, node: fx.Node) -> fx.Node:
        """The node in the new graph, with the arguments that stand there for its own."""
        return self.graph.node_copy(node, lambda argument: self.copies[argument])

    def with_halo(self, node: fx.Node, mode: int) -> fx.Node:
        """The tensor with the rows of the halo behind its own along a mode."""
        if node not in self.exchanged:
            rows = self.copies[node]
            if mode:
                rows = self.call(aten.transpose.int, rows, 0, mode)
            found = self.call(torch.ops.sparsify.halo_exchange.default, rows, self.plan)
            self.exchanged[node] = self.call(aten.transpose.int, found, 0, mode) if mode else found
        return self.exchanged[node]

    def total(self, value: fx.Node) -> fx.Node:
        """The sum of a tensor over all processes."""
        return self.call(torch.ops.sparsify.all_reduce_sum.default, value, self.plan)


# A rule makes the node in the new graph and says how its result lies.
Rule = Callable[[Placing, Any], tuple[Any, Placement | Size | None]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ATen's operators of some names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def place(
    graph: fx.Graph, inputs: Mapping[str, Placement], plan: int, halo: int, nodes: int
) -> tuple[fx.Graph, list[Placement]]:
    """The graph over local rows, and how its outputs lie.

    Args:
        graph: of `passes.capture`, its placeholders named by inputs.
        inputs: how the inputs lie, by name.
        plan: of the exchange, as `halo.register` numbered it.
        halo: how many rows of others this process reads.
        nodes: how many nodes the whole graph has.

    Raises:
        UnsupportedOperatorError: an operator needs rows of other processes in a way that has no rule.
    """
    placing = Placing(fx.Graph(), plan, halo, nodes)
    outputs: list[Placement] = []
    for node in graph.nodes:
        found: Placement | Size | None = REPLICATED
        if node.op == "placeholder":
            found = inputs[str(info(node).input_name or node.target)]
            placing.copies[node] = placing.copied(node)
        elif node.op == "output":
            outputs = [placing.of(value) for value in node.args[0]]
            for value in node.args[0]:
                _require_values(placing, node, placing.of(value))
                if placing.size(value):
                    raise _refused(placing, node, "returns a number of local rows")
            placing.copies[node] = placing.copied(node)
        elif node.op == "get_attr":
            placing.copies[node] = placing.copied(node)
        else:
            placing.copies[node], found = _called(placing, node)
        if found is not None:
            placing.placements[node] = found
    return placing.graph, outputs


def _called(placing: Placing, node: Any) -> tuple[Any, Placement | Size | None]:
    """The call in the new graph, by the rule of its operator."""
    operands = node.all_input_nodes
    target: Any = node.target
    is_operator = isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.removeprefix("aten::") if is_operator else target.__name__
    if is_operator and torch.Tag.nondeterministic_seeded in target.tags and name not in RULES:
        raise _refused(placing, node, "draws numbers that would differ between processes")
    if name != "dropout" and not any(placing.of(n).is_sharded or placing.size(n) for n in operands):
        return placing.copied(node), REPLICATED
    if name in RULES:
        return RULES[name](placing, node)
    if not is_operator:
        return _sizes(placing, node)
    if torch.Tag.pointwise in target.tags:
        return _pointwise(placing, node)
    if not any(placing.of(n).is_sharded for n in operands) and "assert" in name:
        return placing.copied(node), None
    raise _refused(placing, node)


def _refused(
    placing: Placing, node: Any, why: str = "has no rule for tensors whose rows are on several processes"
) -> Exception:
    """The error for a node."""
    operands = ", ".join(
        f"{n} {shape_of(n)}, {placing.of(n)}" for n in node.all_input_nodes if placing.of(n).is_sharded
    )
    return UnsupportedOperatorError(
        f"{node.target} ({node.name}) {why}: {operands}",
        "run this model in one process, or write that step with gathers and scatters along edge_index",
    )


def shape_of(node: Any) -> tuple[Any, ...]:
    """The sizes of a tensor as it was captured."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _require_values(placing: Placing, node: Any, *placements: Placement) -> None:
    """Raises where local numbers are read as values."""
    if any(placement.numbers for placement in placements):
        raise _refused(placing, node, "reads numbers of nodes as values, which differ between processes")


def _mode(node: Any, mode: int) -> int:
    """A mode counted from the first."""
    return mode % len(shape_of(node)) if shape_of(node) else mode


def _same(left: Any, right: Any) -> bool:
    """Whether two captured sizes are the same expression; no guard arises."""
    return str(left) == str(right)


def _sizes(placing: Placing, node: Any) -> tuple[Any, Placement | Size | None]:
    """Sums of sizes that count rows here count rows; other arithmetic of local sizes is refused.

    `n + 2` counts two more in each process, and two more in all of them together: no local number says both.
    """
    if getattr(node.target, "__name__", "") == "add" and all(placing.size(value) for value in node.args):
        return placing.copied(node), Size(ANY)
    raise _refused(placing, node, "computes with a number of local rows")


def _pointwise(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Entries alone: rows of all operands lie along one mode, and what is the same everywhere is broadcast."""
    rank = len(shape_of(node))
    found: Placement | None = None
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    kinds = [placing.of(n).numbers for n in tensors]
    if any(kinds):
        name = node.target._schema.name
        is_alone = len(tensors) == 1 and name in ("aten::clone",)
        if is_alone:
            return placing.copied(node), placing.of(tensors[0])
        if not (name in ("aten::eq", "aten::ne") and len(tensors) == 2 and all(len(k) == 1 for k in kinds)):
            _require_values(placing, node, *(placing.of(n) for n in tensors))
    for operand in tensors:
        placement = placing.of(operand)
        if not placement.is_sharded:
            continue
        aligned = placement.at(placement.mode + rank - len(shape_of(operand)))
        space = aligned.space if found is None else common(found.space, aligned.space)
        if space is None or (found is not None and aligned.mode != found.mode):
            raise _refused(placing, node, "joins tensors whose rows lie in different ways")
        found = Placement(space, aligned.mode)
    if found is None:  # sizes alone are sharded
        found = REPLICATED
    for operand in tensors:
        shape = shape_of(operand)
        at = found.mode - rank + len(shape)
        if found.is_sharded and not placing.of(operand).is_sharded and at >= 0 and not _same(shape[at], 1):
            raise _refused(
                placing, node, f"joins rows with {operand}, which has a row for each of all processes"
            )
    return _with_whole_sizes(placing, node), found


def _with_whole_sizes(placing: Placing, node: Any) -> Any:
    """The call, where numbers of local rows that are values become the number of all."""
    made: Any = placing.copied(node)
    for operand in node.all_input_nodes:
        size = placing.size(operand)
        if size is None:
            continue
        if size.space != NODES:
            raise _refused(placing, node, "computes with a number of local rows")
        made.replace_input_with(placing.copies[operand], placing.nodes)
    return made


@rule("detach", "_to_copy", "to", "contiguous", "alias", "lift_fresh_copy")
def _kept(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Copies lie as their operand; numbers stay numbers in integers alone."""
    placement = placing.of(node.args[0])
    value = node.meta["val"]
    if placement.numbers and (value.is_floating_point() or value.dtype == torch.bool):
        _require_values(placing, node, placement)
    return placing.copied(node), placement


@rule("sym_size")
def _size_of(placing: Placing, node: Any) -> tuple[Any, Placement | Size]:
    """The size of a mode: of rows, how many are here."""
    placement = placing.of(node.args[0])
    if placement.is_sharded and _mode(node.args[0], node.args[1]) == placement.mode:
        assert placement.space is not None
        return placing.copied(node), Size(placement.space)
    return placing.copied(node), REPLICATED


@rule("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like")
def _filled(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Equal entries: rows where a size counts rows."""
    if isinstance(node.args[0], fx.Node):
        return placing.copied(node), placing.of(node.args[0]).at(placing.of(node.args[0]).mode)
    if any(placing.size(value) for value in node.args[1:]):
        raise _refused(placing, node, "computes with a number of local rows")
    sizes = [(mode, placing.size(size)) for mode, size in enumerate(node.args[0])]
    rows = [(mode, size) for mode, size in sizes if size is not None]
    if len(rows) > 1:
        raise _refused(placing, node, "makes a tensor with a row and a column for each node")
    return placing.copied(node), Placement(rows[0][1].space, rows[0][0]) if rows else REPLICATED


@rule("arange")
def _numbered(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """0 to the number of nodes: local numbers of own rows."""
    start, end = (0, node.args[0]) if len(node.args) == 1 else node.args[:2]
    size = placing.size(end)
    if start != 0 or len(node.args) > 2 or size is None or size.space != NODES:
        raise _refused(placing, node, "numbers something else than all nodes")
    return placing.copied(node), Placement(NODES, 0, ("own",))


def reshaped(before: tuple[Any, ...], after: tuple[Any, ...], mode: int) -> int | None:
    """The position of a mode after a reshape that keeps the mode: as large, behind as many entries; else None.

    >>> reshaped((10, 32), (10, 4, 8), 0)
    0
    """
    lead = _product(before[:mode])
    for place, size in enumerate(after):
        if _same(size, before[mode]) and _same(_product(after[:place]), lead):
            return place
    return None


def _product(sizes: tuple[Any, ...]) -> Any:
    """The product of captured sizes."""
    found: Any = 1
    for size in sizes:
        found = found * size
    return found


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten")
def _reshape(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Views that keep the mode of the rows."""
    placement = placing.of(node.args[0])
    if not placement.is_sharded:
        return placing.copied(node), _by_sizes(placing, node)
    mode = reshaped(shape_of(node.args[0]), shape_of(node), placement.mode)
    if mode is None:
        raise _refused(placing, node, "joins or splits the mode of the rows")
    numbers = placement.numbers
    if len(numbers) > 1 and shape_of(node.args[0]) != shape_of(node):
        _require_values(placing, node, placement)
    return placing.copied(node), Placement(placement.space, mode, numbers)


def _by_sizes(placing: Placing, node: Any) -> Placement:
    """The placement of a replicated tensor after a view to sizes of which one counts rows."""
    if any(placing.size(n) for n in node.all_input_nodes):
        raise _refused(placing, node, "gives a tensor of each process a number of local rows")
    return REPLICATED


@rule("expand")
def _expanded(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Broadcasting: rows stay, or equal ones arise."""
    operand, sizes = node.args[:2]
    placement, rank = placing.of(operand), len(shape_of(node))
    if placement.is_sharded:
        if len(placement.numbers) > 1:
            _require_values(placing, node, placement)
        mode = placement.mode + rank - len(shape_of(operand))
        return placing.copied(node), Placement(placement.space, mode, placement.numbers)
    rows = [(mode, placing.size(size)) for mode, size in enumerate(sizes) if placing.size(size)]
    if len(rows) != 1:
        raise _refused(placing, node, "makes a tensor with a row and a column for each node")
    mode, size = rows[0]
    inner = mode - rank + len(shape_of(operand))
    if inner >= 0 and not _same(shape_of(operand)[inner], 1):
        raise _refused(placing, node, "gives a tensor of each process a number of local rows")
    assert size is not None
    return placing.copied(node), Placement(size.space, mode)


@rule("repeat")
def _repeated(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Copies along other modes than that of the rows; numbers `[1, n]` repeated twice are a pair of numbers."""
    operand, times = node.args[:2]
    placement, added = placing.of(operand), len(times) - len(shape_of(operand))
    mode = placement.mode + added
    if not placement.is_sharded or times[mode] != 1:
        raise _refused(placing, node, "repeats rows")
    numbers, shape = placement.numbers, shape_of(node)
    if numbers and mode == 1 and len(shape) == 2 and isinstance(shape[0], int):
        numbers = numbers * (shape[0] // len(numbers))
    elif len(numbers) > 1:
        _require_values(placing, node, placement)
    return placing.copied(node), Placement(placement.space, mode, numbers)


@rule("transpose", "permute", "t", "numpy_T")
def _permuted(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Modes in another order."""
    operand = node.args[0]
    placement, rank = placing.of(operand), len(shape_of(operand))
    if len(placement.numbers) > 1:
        _require_values(placing, node, placement)
    order = list(range(rank))
    if node.target is aten.numpy_T.default:
        order.reverse()
    elif node.target is aten.permute.default:
        order = [mode % rank for mode in node.args[1]]
    else:
        first, second = (m % rank for m in node.args[1:3]) if len(node.args) > 2 else (0, rank - 1)
        order[first], order[second] = order[second], order[first]
    return placing.copied(node), Placement(placement.space, order.index(placement.mode), placement.numbers)


@rule("select")
def _selected(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """One entry of another mode than that of the rows; of a pair of numbers, one of them."""
    operand, mode, index = node.args
    placement, at = placing.of(operand), _mode(operand, mode)
    if at == placement.mode:
        raise _refused(placing, node, "selects a row by its local number")
    numbers = placement.numbers
    if len(numbers) > 1:
        if at != 0 or not isinstance(index, int):
            _require_values(placing, node, placement)
        numbers = (numbers[int(index)],)
    return placing.copied(node), Placement(placement.space, placement.mode - (at < placement.mode), numbers)


@rule("unbind")
def _unbound(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """All entries of another mode than that of the rows; of a pair of numbers, each of them."""
    operand, mode = node.args[0], node.args[1] if len(node.args) > 1 else 0
    placement, at = placing.of(operand), _mode(operand, mode)
    if at == placement.mode or (at and placement.numbers):
        raise _refused(placing, node, "takes some rows by their local numbers")
    return placing.copied(node), replace(placement, mode=placement.mode - (at < placement.mode))


@rule("slice", "split", "split_with_sizes", "chunk", "flip", "roll", "cumsum", "glu")
def _along(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Parts of, or steps along, another mode than that of the rows."""
    operand = node.args[0]
    placement = placing.of(operand)
    name = node.target._schema.name.removeprefix("aten::")
    places = {
        "slice": 1,
        "split": 2,
        "split_with_sizes": 2,
        "chunk": 2,
        "flip": 1,
        "cumsum": 1,
        "roll": 2,
    }
    default = -1 if name == "glu" else 0
    place = places.get(name, 1)
    named = node.kwargs.get("dims", node.kwargs.get("dim", () if name == "roll" else default))
    mode = node.args[place] if len(node.args) > place else named
    modes = {_mode(operand, m) for m in (mode if isinstance(mode, (list, tuple)) else [mode])}
    if placement.mode in modes or not modes:  # without modes entries of all rows are rolled
        raise _refused(placing, node, "takes some rows by their local numbers")
    _require_values(placing, node, placement)
    return placing.copied(node), placement


@rule("getitem")
def _item(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """One of several results that lie alike."""
    placement = placing.of(node.args[0])
    if len(placement.numbers) > 1:
        placement = replace(placement, numbers=(placement.numbers[node.args[1]],))
    return placing.copied(node), placement


@rule("cat", "stack")
def _concatenated(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Tensors behind each other: along the mode of the rows, all items of each process."""
    tensors = list(node.args[0])
    mode = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    rank = len(shape_of(node))
    at = int(mode) % rank
    placements = [placing.of(tensor) for tensor in tensors]
    is_stack = node.target is aten.stack.default
    rows = {placement.mode for placement in placements}
    if not all(p.is_sharded for p in placements) or len(rows) != 1:
        raise _refused(placing, node, "joins rows with what is the same everywhere")
    row = rows.pop()
    kinds = {placement.numbers for placement in placements}
    if not is_stack and row == at:
        if len({len(kind) for kind in kinds}) > 1:
            _require_values(placing, node, *placements)
        numbers = tuple(joined(kind) for kind in zip(*(p.numbers for p in placements)))
        space = " & ".join(str(placement.space) for placement in placements)
        return placing.copied(node), Placement(space, row, numbers)
    if len({placement.space for placement in placements}) != 1:
        raise _refused(placing, node, "joins rows of different sets")
    if is_stack and at == 0 and rank == 2 and all(len(p.numbers) == 1 for p in placements):
        return placing.copied(node), Placement(
            placements[0].space, 1, tuple(p.numbers[0] for p in placements)
        )
    _require_values(placing, node, *placements)
    return placing.copied(node), placements[0].at(row + (is_stack and at <= row))


@rule("index")
def _indexed(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """`x[mask]` keeps some rows, `x[numbers]` gathers rows: by columns, after an exchange."""
    operand, indices = node.args
    used = [(mode, index) for mode, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        raise _refused(placing, node, "gathers by several indices")
    mode, index = used[0]
    if index.meta["val"].dtype == torch.bool:
        kept, rows = placing.of(index), placing.of(operand)
        if (
            common(kept.space, rows.space) is None
            or kept.mode
            or rows.mode != mode
            or len(shape_of(index)) != 1
        ):
            raise _refused(placing, node, "masks something else than rows by rows")
        numbers = rows.numbers
        if _are_loops(placing, index, operand):
            numbers = ("own",)
        return placing.copied(node), Placement(f"{rows.space}[{index.name}]", mode, numbers)
    return _gather(placing, node, operand, mode, index)


def _are_loops(placing: Placing, mask: Any, numbers: Any) -> bool:
    """Whether a mask keeps numbers that equal own ones: `a[a == b]`, or `a[~(a != b)]`, where b numbers own rows."""
    wanted = "eq"
    while isinstance(mask, fx.Node) and mask.target in (aten.bitwise_not.default, aten.logical_not.default):
        mask, wanted = mask.args[0], "ne" if wanted == "eq" else "eq"
    if getattr(mask.target, "__name__", "") != f"{wanted}.Tensor":
        return False
    return numbers in mask.args and any(placing.of(side).numbers == ("own",) for side in mask.args)


@rule("index_put")
def _put(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """`out[own numbers] = x`: rows of this process alone."""
    result, indices, values = node.args[:3]
    into, rows = placing.of(result), placing.of(values)
    used = [(mode, index) for mode, index in enumerate(indices) if index is not None]
    _require_values(placing, node, into, rows)
    if len(used) != 1 or into.space != NODES or into.mode != used[0][0]:
        raise _refused(placing, node, "writes something else than rows by one index")
    numbers = placing.of(used[0][1])
    is_beside = rows.is_sharded and rows.mode == into.mode and common(rows.space, numbers.space) is not None
    is_alike = not rows.is_sharded and len(shape_of(values)) < len(shape_of(result)) - into.mode
    if numbers.numbers != ("own",) or not (is_beside or is_alike):
        raise _refused(placing, node, "writes rows by numbers that are not those of own rows")
    return placing.copied(node), into


@rule("index_select", "embedding")
def _index_select(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Rows by number."""
    if node.target is aten.embedding.default:
        return _gather(placing, node, node.args[0], 0, node.args[1])
    operand, mode, index = node.args
    return _gather(placing, node, operand, _mode(operand, mode), index)


def _gather(placing: Placing, node: Any, operand: Any, mode: int, index: Any) -> tuple[Any, Placement]:
    """`out[.., e, ..] = x[.., index[e], ..]`: rows lie as the index does."""
    rows, numbers = placing.of(operand), placing.of(index)
    _require_values(placing, node, rows)
    if not numbers.is_sharded:
        if rows.mode == mode:
            raise _refused(placing, node, "gathers rows by numbers that are the same everywhere")
        return placing.copied(node), rows.at(rows.mode + (len(shape_of(index)) - 1) * (mode < rows.mode))
    result = Placement(numbers.space, mode + numbers.mode)
    if not rows.is_sharded:
        _require_values(placing, node, numbers)
        return placing.copied(node), result
    if rows.space != NODES or rows.mode != mode or len(numbers.numbers) != 1:
        raise _refused(placing, node, "gathers rows by numbers that are not those of nodes")
    if numbers.numbers == ("own",):
        return placing.copied(node), result
    extended = placing.with_halo(operand, mode)
    made = placing.copied(node)
    made.update_arg(0, extended)
    return made, result


@rule("index_add", "scatter_add", "scatter_reduce", "index_reduce", "scatter")
def _scattered(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """`out[index[e]] += x[e]`: into own rows; by columns, into the owners'; by plain numbers, summed over processes."""
    result, mode, index, values = node.args[:4]
    into, numbers, rows = placing.of(result), placing.of(index), placing.of(values)
    at = _mode(result, mode)
    name = node.target._schema.name.removeprefix("aten::")
    is_sum = name in ("index_add", "scatter_add") or (
        name == "scatter_reduce" and node.args[4] == "sum" and node.kwargs.get("include_self", True)
    )
    _require_values(placing, node, into, rows)
    index_mode = at if len(shape_of(index)) > 1 else 0
    values_mode = rows.mode if rows.is_sharded else at
    if not numbers.is_sharded or numbers.mode != index_mode or values_mode != at:
        raise _refused(placing, node, "scatters along a mode that is not that of the edges")
    if isinstance(values, fx.Node) and common(rows.space, numbers.space) is None:
        raise _refused(placing, node, "scatters values whose rows are not those of the numbers")
    if into.is_sharded:
        if into.space != NODES or into.mode != at or len(numbers.numbers) != 1:
            raise _refused(placing, node, "scatters by numbers that are not those of nodes")
        if numbers.numbers == ("own",):
            return placing.copied(node), into
        if not is_sum or at:
            raise _refused(placing, node, "reduces at sources in another way than by sums")
        return _into_owners(placing, node), into
    if not is_sum or numbers.numbers:
        raise _refused(placing, node, "scatters into a tensor of each process in another way than by sums")
    return _over_processes(placing, node), REPLICATED


def _into_owners(placing: Placing, node: Any) -> fx.Node:
    """`self + halo_reduce(scatter(zeros [own + halo], ...))`, rows along mode 0."""
    result = placing.copies[node.args[0]]
    zeros = placing.call(aten.zeros_like.default, result)
    padding = [0, 0] * (len(shape_of(node)) - 1) + [0, placing.halo]
    extended = placing.call(aten.constant_pad_nd.default, zeros, padding)
    made = placing.copied(node)
    made.update_arg(0, extended)
    reduced = placing.call(torch.ops.sparsify.halo_reduce.default, made, placing.plan)
    return placing.call(aten.add.Tensor, result, reduced)


def _over_processes(placing: Placing, node: Any) -> fx.Node:
    """`self + all_reduce(scatter(zeros, ...))`."""
    result = placing.copies[node.args[0]]
    zeros = placing.call(aten.zeros_like.default, result)
    made = placing.copied(node)
    made.update_arg(0, zeros)
    return placing.call(aten.add.Tensor, result, placing.total(made))


@rule("linear")
def _linear(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """`x W^T + b`: rows stay where features are summed."""
    operand, *weights = node.args
    rows = placing.of(operand)
    is_other = any(placing.of(weight).is_sharded for weight in weights)
    if is_other or not rows.is_sharded or rows.mode == len(shape_of(operand)) - 1:
        raise _refused(placing, node, "sums over rows, or has weights with rows")
    _require_values(placing, node, rows)
    return placing.copied(node), rows


@rule("mm", "matmul", "addmm", "bmm")
def _product_of(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Products: rows of the left operand stay; `x^T y` over rows is summed over processes."""
    is_added = node.target is aten.addmm.default
    left, right = node.args[-2:] if not is_added else node.args[1:3]
    first, second = placing.of(left), placing.of(right)
    rank, other = len(shape_of(left)), len(shape_of(right))
    _require_values(placing, node, first, second)
    if is_added and placing.of(node.args[0]).is_sharded:
        raise _refused(placing, node, "adds rows to a product")
    if first.is_sharded and not second.is_sharded and first.mode < rank - 1:
        if other <= 2:
            return placing.copied(node), first.at(first.mode)
        if first.mode == rank - 2:
            return placing.copied(node), first.at(len(shape_of(node)) - 2)
    is_contracted = first.mode == rank - 1 and second.mode == max(other - 2, 0)
    if (
        first.is_sharded
        and second.is_sharded
        and common(first.space, second.space)
        and is_contracted
        and not is_added
    ):
        return placing.total(placing.copied(node)), REPLICATED
    raise _refused(placing, node, "multiplies rows of all processes")


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "logsumexp")
def _normalised(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Along another mode than that of the rows."""
    rows = placing.of(node.args[0])
    modes = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    if rows.mode in {_mode(node.args[0], m) for m in modes}:
        raise _refused(placing, node, "normalises over rows of all processes")
    _require_values(placing, node, rows)
    if node.target is aten.logsumexp.default:
        return _reduced_mode(placing, node, rows)
    return placing.copied(node), rows


def _reduced_mode(placing: Placing, node: Any, rows: Placement) -> tuple[Any, Placement]:
    """The rows of a reduction over other modes."""
    operand = node.args[0]
    rank = len(shape_of(operand))
    modes = node.args[1] if len(node.args) > 1 else []
    gone = sorted({_mode(operand, m) for m in (modes if isinstance(modes, (list, tuple)) else [modes])})
    if len(shape_of(node)) == rank:
        return placing.copied(node), rows.at(rows.mode)
    return placing.copied(node), rows.at(rows.mode - sum(mode < rows.mode for mode in gone))


@rule(
    "sum",
    "mean",
    "amax",
    "amin",
    "var",
    "std",
    "prod",
    "any",
    "all",
    "norm",
    "argmax",
    "argmin",
    "linalg_vector_norm",
)
def _reduced(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Over other modes, local; sums and means over rows, summed over processes."""
    operand = node.args[0]
    rows, rank = placing.of(operand), len(shape_of(operand))
    name = node.target._schema.name.removeprefix("aten::")
    _require_values(placing, node, rows)
    place = 2 if name in ("norm", "linalg_vector_norm") else 1
    modes = node.args[place] if len(node.args) > place else node.kwargs.get("dim")
    listed = modes if isinstance(modes, (list, tuple)) else ([] if modes is None else [modes])
    gone = {_mode(operand, m) for m in listed} or set(range(rank))
    if rows.mode not in gone:
        is_kept = len(shape_of(node)) == rank
        return placing.copied(node), rows.at(rows.mode - (0 if is_kept else sum(m < rows.mode for m in gone)))
    if name == "sum":
        return placing.total(placing.copied(node)), REPLICATED
    if name == "mean" and rows.space == NODES:
        made = placing.copied(node)
        made.target = aten.sum.default if len(node.args) == 1 else aten.sum.dim_IntList
        count = placing.nodes
        for mode in gone - {rows.mode}:
            count *= shape_of(operand)[mode]
        return placing.call(aten.div.Tensor, placing.total(made), count), REPLICATED
    raise _refused(placing, node, "reduces over rows of all processes in another way than by sums")


@rule("layer_norm", "rms_norm", "native_layer_norm")
def _layer_norm(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Over the last modes, which are not that of the rows."""
    rows = placing.of(node.args[0])
    _require_values(placing, node, rows)
    if rows.mode >= len(shape_of(node.args[0])) - len(node.args[1]):
        raise _refused(placing, node, "normalises over rows of all processes")
    return placing.copied(node), rows


@rule("batch_norm")
def _batch_norm(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """With the statistics of the model; those of a batch need the rows of all processes."""
    rows = placing.of(node.args[0])
    _require_values(placing, node, rows)
    if node.args[5] or rows.mode == 1:
        raise _refused(
            placing, node, "in training takes statistics over rows of all processes; set model.eval()"
        )
    return placing.copied(node), rows


@rule("dropout")
def _dropout(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Nothing in evaluation; in training the numbers follow the rows of the whole graph, whoever has them."""
    operand, share, training = node.args[:3]
    rows = placing.of(operand)
    _require_values(placing, node, rows)
    if not training or share == 0:
        return placing.copied(node), rows
    if rows.is_sharded and rows.space != NODES:
        raise _refused(
            placing, node, "in training draws for rows that have no number in the whole graph; set p=0"
        )
    number = sum(other.target is drop_rows for other in placing.graph.nodes)
    mode = rows.mode if rows.is_sharded else None
    return placing.call(drop_rows, placing.copies[operand], share, mode, placing.plan, number), rows
