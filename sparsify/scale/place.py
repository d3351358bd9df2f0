"""Placement of a model's graph on one part: exchanges are inserted where an operator reads rows of other processes.

In: a captured graph, and the placements of its inputs. Out: `place(...)`, a new graph over local rows with
`halo_exchange` before gathers by columns, `halo_reduce` behind scatters by columns, `all_reduce_sum` behind sums over
rows.

Each operator has a rule in `RULES`, from the placements of the operands to the placement of the result; pointwise
operators share one. An operator without a rule that reads all of a sharded mode is refused, because its local result
would be wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

import torch
from torch import fx

from sparsify.errors import UnsupportedOperatorError
from sparsify.passes.graph.node_info import info
from sparsify.scale import dropout  # noqa: F401  registers drop_rows
from sparsify.scale.placement import ANY, EDGES, NODES, REPLICATED, Placement, Size, common, joined

aten = torch.ops.aten
DROP: Final = torch.ops.sparsify.drop_rows.default
# The buffers of the new graph with numbers of rows and edges in the whole graph.
NUMBERS: Final = {NODES: "numbers_of_rows", EDGES: "numbers_of_edges"}
# Bytes of an exchanged row, in the metadata of an exchange.
ROW_BYTES: Final = "sparsify_row_bytes"
# Distance of the number ranges of concatenated sets of rows.
APART: Final = 1 << 40


@dataclass
class Placing:
    """The state of placement, node by node.

    Attributes:
        graph: the new graph.
        plan: number of the halo plan.
        halo: number of rows read from other processes.
        nodes, edges: numbers of the whole graph.
        placements: placements of tensors and meanings of sizes by node of the old graph; no entry for other values.
        copies: node of the new graph by node of the old graph.
        exchanged: rows with the halo by node of the old graph, exchanged once.
        numbers: node of the new graph with the global numbers of a set of rows, by name of the set.
    """

    graph: fx.Graph
    plan: int
    halo: int
    nodes: int
    edges: int
    placements: dict[fx.Node, Placement | Size] = field(default_factory=dict)
    copies: dict[fx.Node, Any] = field(default_factory=dict)
    exchanged: dict[fx.Node, fx.Node] = field(default_factory=dict)
    numbers: dict[str, Callable[[], fx.Node]] = field(default_factory=dict)

    def of(self, value: Any) -> Placement:
        """The placement of a tensor; replicated if not sharded."""
        found = self.placements.get(value) if isinstance(value, fx.Node) else None
        return found if isinstance(found, Placement) else REPLICATED

    def size(self, value: Any) -> Size | None:
        """The set of rows counted by a size, None for plain numbers."""
        found = self.placements.get(value) if isinstance(value, fx.Node) else None
        return found if isinstance(found, Size) else None

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call in the new graph."""
        return self.graph.call_function(target, args, kwargs)

    def copied(self, node: fx.Node) -> fx.Node:
        """The node in the new graph, with arguments replaced by their copies."""
        return self.graph.node_copy(node, lambda argument: self.copies[argument])

    def with_halo(self, node: fx.Node, mode: int) -> fx.Node:
        """The tensor with the halo rows behind the own rows along a mode."""
        if node not in self.exchanged:
            rows = self.copies[node]
            if mode:
                rows = self.call(aten.transpose.int, rows, 0, mode)
            found = self.call(torch.ops.sparsify.halo_exchange.default, rows, self.plan)
            found.meta[ROW_BYTES] = row_bytes(node, mode)
            self.exchanged[node] = self.call(aten.transpose.int, found, 0, mode) if mode else found
        return self.exchanged[node]

    def numbers_of(self, space: str) -> fx.Node:
        """The global numbers of the rows of a set, int64 [rows]; other sets have other numbers."""
        made = self.numbers.get(space)
        node = made() if made is not None else self.graph.get_attr(NUMBERS[space])
        self.numbers[space] = lambda: node
        return node

    def greatest(self, value: fx.Node, modes: list[int]) -> fx.Node:
        """The maximum along modes over all processes, without a gradient; the modes are kept with extent 1."""
        detached = self.call(aten.detach.default, value)
        return self.call(torch.ops.sparsify.all_reduce_amax.default, detached, modes, self.plan)

    def count(self, space: str | None) -> int | None:
        """The number of rows of a set in all processes; None if dependent on data."""
        return {NODES: self.nodes, EDGES: self.edges}.get(str(space))

    def total(self, value: fx.Node) -> fx.Node:
        """The sum of a tensor over all processes."""
        return self.call(torch.ops.sparsify.all_reduce_sum.default, value, self.plan)


# A rule makes the node in the new graph and returns the placement of the result.
Rule = Callable[[Placing, Any], tuple[Any, Placement | Size | None]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ATen operators by name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def place(
    graph: fx.Graph, inputs: Mapping[str, Placement], plan: int, halo: int, nodes: int, edges: int
) -> tuple[fx.Graph, list[Placement]]:
    """The graph over local rows, and the placements of the outputs.

    Args:
        graph: graph of `passes.capture`, with placeholders named by inputs.
        inputs: placements of the inputs, by name.
        plan: plan of the exchange, as numbered by `halo.register`.
        halo: number of rows read from other processes.
        nodes, edges: numbers of the whole graph.

    Raises:
        UnsupportedOperatorError: an operator needs rows of other processes in a way without a rule.
    """
    placing = Placing(fx.Graph(), plan, halo, nodes, edges)
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
    """The call in the new graph, by the rule of the operator."""
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
    """The captured sizes of a tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def row_bytes(node: fx.Node, mode: int) -> int:
    """Bytes of one row along a mode; symbolic sizes count as one."""
    sizes = [size for at, size in enumerate(shape_of(node)) if at != mode]
    return int(prod(size for size in sizes if isinstance(size, int)) * node.meta["val"].element_size())


def _require_values(placing: Placing, node: Any, *placements: Placement) -> None:
    """Raises if local row numbers are read as values."""
    if any(placement.numbers for placement in placements):
        raise _refused(placing, node, "reads numbers of nodes as values, which differ between processes")


def _mode(node: Any, mode: int) -> int:
    """A mode counted from 0."""
    return mode % len(shape_of(node)) if shape_of(node) else mode


def _same(left: Any, right: Any) -> bool:
    """Whether two captured sizes are the same expression; adds no guard."""
    return str(left) == str(right)


def _sizes(placing: Placing, node: Any) -> tuple[Any, Placement | Size | None]:
    """Sums of row counts are row counts; other arithmetic of local sizes is refused.

    `n + 2` would add two in each process, but two to the global count: no local number expresses both.
    """
    if getattr(node.target, "__name__", "") == "add" and all(placing.size(value) for value in node.args):
        return placing.copied(node), Size(ANY)
    raise _refused(placing, node, "computes with a number of local rows")


def _pointwise(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Pointwise operators: rows of all operands lie along one mode, and replicated operands are broadcast."""
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
    """The call, with local row counts used as values replaced by the global count."""
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
    """Copies keep the placement of the operand; row numbers remain row numbers in integer dtypes alone."""
    placement = placing.of(node.args[0])
    value = node.meta["val"]
    if placement.numbers and (value.is_floating_point() or value.dtype == torch.bool):
        _require_values(placing, node, placement)
    return placing.copied(node), placement


@rule("sym_size")
def _size_of(placing: Placing, node: Any) -> tuple[Any, Placement | Size]:
    """The size of a mode; for the mode of the rows, the local count."""
    placement = placing.of(node.args[0])
    if placement.is_sharded and _mode(node.args[0], node.args[1]) == placement.mode:
        assert placement.space is not None
        return placing.copied(node), Size(placement.space)
    return placing.copied(node), REPLICATED


@rule("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like")
def _filled(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Constant tensors: sharded if a size counts rows."""
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
    """The position of a mode after a reshape that preserves the mode (extent and offset); else None.

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
    """Views that preserve the mode of the rows."""
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
    """The placement of a replicated tensor after a view; sizes that count rows are refused."""
    if any(placing.size(n) for n in node.all_input_nodes):
        raise _refused(placing, node, "gives a tensor of each process a number of local rows")
    return REPLICATED


@rule("expand")
def _expanded(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Broadcasting: keeps rows, or makes equal rows."""
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
    """Copies along modes other than the rows; numbers `[1, n]` repeated twice are a pair of numbers."""
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
    """Permutation of modes."""
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
    """One entry of a mode other than the rows; for a pair of numbers, one of the pair."""
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
    """All entries of a mode other than the rows; for a pair of numbers, each of the pair."""
    operand, mode = node.args[0], node.args[1] if len(node.args) > 1 else 0
    placement, at = placing.of(operand), _mode(operand, mode)
    if at == placement.mode or (at and placement.numbers):
        raise _refused(placing, node, "takes some rows by their local numbers")
    return placing.copied(node), replace(placement, mode=placement.mode - (at < placement.mode))


@rule("slice", "split", "split_with_sizes", "chunk", "flip", "roll", "cumsum", "glu")
def _along(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Parts of, or steps along, a mode other than the rows."""
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
    """One of several results with equal placements."""
    placement = placing.of(node.args[0])
    if len(placement.numbers) > 1:
        placement = replace(placement, numbers=(placement.numbers[node.args[1]],))
    return placing.copied(node), placement


@rule("cat", "stack")
def _concatenated(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Concatenation: along the mode of the rows, locally in each process."""
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
        if all(placement.space in NUMBERS or placement.space in placing.numbers for placement in placements):
            placing.numbers.setdefault(
                space, lambda: _numbers_behind(placing, [str(p.space) for p in placements])
            )
        return placing.copied(node), Placement(space, row, numbers)
    if len({placement.space for placement in placements}) != 1:
        raise _refused(placing, node, "joins rows of different sets")
    if is_stack and at == 0 and rank == 2 and all(len(p.numbers) == 1 for p in placements):
        return placing.copied(node), Placement(
            placements[0].space, 1, tuple(p.numbers[0] for p in placements)
        )
    _require_values(placing, node, *placements)
    return placing.copied(node), placements[0].at(row + (is_stack and at <= row))


def _numbers_behind(placing: Placing, spaces: list[str]) -> fx.Node:
    """The numbers of concatenated sets of rows."""
    found = [
        placing.call(aten.add.Tensor, placing.numbers_of(space), APART * place)
        for place, space in enumerate(spaces)
    ]
    return placing.call(aten.cat.default, found)


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
        space = f"{rows.space}[{index.name}]"
        placing.numbers.setdefault(
            space,
            lambda: placing.call(
                aten.index.Tensor, placing.numbers_of(str(rows.space)), [placing.copies[index]]
            ),
        )
        return placing.copied(node), Placement(space, mode, numbers)
    return _gather(placing, node, operand, mode, index)


def _are_loops(placing: Placing, mask: Any, numbers: Any) -> bool:
    """Whether a mask keeps numbers equal to own ones: `a[a == b]`, or `a[~(a != b)]`, with b as the own row numbers."""
    wanted = "eq"
    while isinstance(mask, fx.Node) and mask.target in (aten.bitwise_not.default, aten.logical_not.default):
        mask, wanted = mask.args[0], "ne" if wanted == "eq" else "eq"
    if getattr(mask.target, "__name__", "") != f"{wanted}.Tensor":
        return False
    return numbers in mask.args and any(placing.of(side).numbers == ("own",) for side in mask.args)


@rule("index_put")
def _put(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """`out[own numbers] = x`: writes rows of this process alone."""
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
    """`out[.., e, ..] = x[.., index[e], ..]`: the result has the placement of the index."""
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
    """`x W^T + b`: rows stay, features are summed."""
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
    """Softmax and logsumexp: local along other modes; along the rows, with the maximum and the sum of all processes."""
    operand, listed = node.args[:2]
    rows = placing.of(operand)
    modes = sorted({_mode(operand, m) for m in (listed if isinstance(listed, (list, tuple)) else [listed])})
    _require_values(placing, node, rows)
    is_sum = node.target is aten.logsumexp.default
    if rows.mode not in modes:
        return _reduced_mode(placing, node, rows) if is_sum else (placing.copied(node), rows)
    value = placing.copies[operand]
    dtype = node.kwargs.get("dtype", node.args[2] if len(node.args) > 2 and not is_sum else None)
    if isinstance(dtype, torch.dtype):
        value = placing.call(aten.to.dtype, value, dtype)
    most = placing.greatest(value, modes)
    shifted = placing.call(aten.sub.Tensor, value, most)
    exponentials = placing.call(aten.exp.default, shifted)
    total = placing.total(placing.call(aten.sum.dim_IntList, exponentials, modes, True))
    if is_sum:
        found = placing.call(aten.add.Tensor, placing.call(aten.log.default, total), most)
        is_kept = len(shape_of(node)) == len(shape_of(operand))
        return found if is_kept else placing.call(aten.squeeze.dims, found, modes), REPLICATED
    if "log" in node.target._schema.name:
        return placing.call(aten.sub.Tensor, shifted, placing.call(aten.log.default, total)), rows
    return placing.call(aten.div.Tensor, exponentials, total), rows


def _reduced_mode(placing: Placing, node: Any, rows: Placement) -> tuple[Any, Placement]:
    """The placement after a reduction over other modes."""
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
    """Reductions: local over other modes; sums and means over rows, summed over processes."""
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
    is_kept = len(shape_of(node)) == rank
    if name in ("amax", "amin"):
        return _extreme(placing, node, sorted(gone), is_kept), REPLICATED
    count = placing.count(rows.space)
    if name not in ("mean", "var", "std") or count is None:
        raise _refused(placing, node, "reduces over rows of all processes in another way than by sums")
    for mode in gone - {rows.mode}:
        count *= shape_of(operand)[mode]
    value, modes = placing.copies[operand], sorted(gone)
    mean = _mean(placing, value, modes, count)
    if name == "mean":
        return mean if is_kept else placing.call(aten.squeeze.dims, mean, modes), REPLICATED
    centred = placing.call(aten.sub.Tensor, value, mean)
    squares = placing.call(aten.mul.Tensor, centred, centred)
    found = _mean(placing, squares, modes, count - _correction(node))
    found = found if is_kept else placing.call(aten.squeeze.dims, found, modes)
    return found if name == "var" else placing.call(aten.sqrt.default, found), REPLICATED


def _correction(node: Any) -> Any:
    """The correction of a variance, subtracted from the number of entries."""
    if "unbiased" in {argument.name for argument in node.target._schema.arguments}:
        names = [argument.name for argument in node.target._schema.arguments]
        place = names.index("unbiased")
        given = node.args[place] if len(node.args) > place else node.kwargs.get("unbiased", True)
        return int(given)
    given = node.kwargs.get("correction")
    return 1 if given is None else given


def _mean(placing: Placing, value: fx.Node, modes: list[int], count: Any) -> fx.Node:
    """The sum over all processes along modes, kept with extent 1, divided by a count."""
    summed = placing.total(placing.call(aten.sum.dim_IntList, value, modes, True))
    return placing.call(aten.div.Tensor, summed, count)


def _extreme(placing: Placing, node: Any, modes: list[int], is_kept: bool) -> fx.Node:
    """The maximum or minimum over all processes; the gradient is divided equally among all ties.

    `m + s - s.detach()` with `s = sum(where(x == m, x, 0)) / count(x == m)`.
    """
    value = placing.copies[node.args[0]]
    is_least = node.target is aten.amin.default
    turned = placing.call(aten.neg.default, value) if is_least else value
    most = placing.greatest(turned, modes)
    found = most
    if node.meta["val"].is_floating_point():
        equal, finite = placing.call(aten.eq.Tensor, turned, most), placing.call(aten.isfinite.default, most)
        ties = placing.call(aten.logical_and.default, equal, finite)
        zero = placing.call(aten.zeros_like.default, turned)
        kept = placing.call(aten.where.self, ties, placing.call(aten.sub.Tensor, turned, most), zero)
        ones = placing.call(aten.where.self, ties, placing.call(aten.ones_like.default, turned), zero)
        count = placing.total(placing.call(aten.sum.dim_IntList, ones, modes, True))
        count = placing.call(aten.clamp_min.default, count, 1)
        summed = placing.total(placing.call(aten.sum.dim_IntList, kept, modes, True))
        found = placing.call(aten.add.Tensor, most, placing.call(aten.div.Tensor, summed, count))
    if is_least:
        found = placing.call(aten.neg.default, found)
    return found if is_kept else placing.call(aten.squeeze.dims, found, modes)


@rule("layer_norm", "rms_norm", "native_layer_norm")
def _layer_norm(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Layer norm over the last modes, excluding the mode of the rows."""
    rows = placing.of(node.args[0])
    _require_values(placing, node, rows)
    if rows.mode >= len(shape_of(node.args[0])) - len(node.args[1]):
        raise _refused(placing, node, "normalises over rows of all processes")
    return placing.copied(node), rows


@rule("batch_norm")
def _batch_norm(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Batch norm with running statistics, or with statistics of the rows of all processes, followed by the buffers."""
    operand, weight, bias, running_mean, running_var, is_training, momentum, eps = node.args[:8]
    rows, shape = placing.of(operand), shape_of(operand)
    _require_values(placing, node, rows)
    if rows.mode == 1:
        raise _refused(placing, node, "normalises each row by itself, and has a weight for each")
    if not is_training:
        return placing.copied(node), rows
    count: Any = placing.count(rows.space)
    if count is None:
        raise _refused(
            placing, node, "in training takes statistics over rows of which only the data say how many"
        )
    modes = [mode for mode in range(len(shape)) if mode != 1]
    for mode in set(modes) - {rows.mode}:
        count *= shape[mode]
    value = placing.copies[operand]
    mean = _mean(placing, value, modes, count)
    centred = placing.call(aten.sub.Tensor, value, mean)
    variance = _mean(placing, placing.call(aten.mul.Tensor, centred, centred), modes, count)
    scale = placing.call(aten.rsqrt.default, placing.call(aten.add.Tensor, variance, eps))
    found = placing.call(aten.mul.Tensor, centred, scale)
    sizes = [-1 if mode == 1 else 1 for mode in range(len(shape))]
    for operator, factor in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if factor is not None:
            found = placing.call(
                operator, found, placing.call(aten.view.default, placing.copies[factor], sizes)
            )
    for buffer, value, share in (
        (running_mean, mean, 1.0),
        (running_var, variance, count / max(count - 1, 1)),
    ):
        if buffer is not None:
            _follow(placing, placing.copies[buffer], value, momentum, share)
    return found, rows


def _follow(placing: Placing, buffer: fx.Node, value: fx.Node, momentum: float, factor: float) -> None:
    """`buffer = (1 - momentum) buffer + momentum factor value`, written in place."""
    detached = placing.call(aten.view.default, placing.call(aten.detach.default, value), [-1])
    kept = placing.call(aten.mul.Tensor, buffer, 1 - momentum)
    new = placing.call(aten.add.Tensor, kept, placing.call(aten.mul.Tensor, detached, momentum * factor))
    placing.call(aten.copy_.default, buffer, new)


@rule("dropout")
def _dropout(placing: Placing, node: Any) -> tuple[Any, Placement]:
    """Dropout: the identity in evaluation; in training the random numbers follow the global rows."""
    operand, share, training = node.args[:3]
    rows = placing.of(operand)
    _require_values(placing, node, rows)
    if not training or share == 0:
        return placing.copied(node), rows
    is_known = rows.space in NUMBERS or rows.space in placing.numbers
    if rows.is_sharded and not is_known:
        raise _refused(
            placing, node, "in training draws for rows that have no number in the whole graph; set p=0"
        )
    place = sum(other.target is DROP for other in placing.graph.nodes)
    numbers = placing.numbers_of(str(rows.space)) if rows.is_sharded else None
    made = placing.call(DROP, placing.copies[operand], numbers, float(share), rows.mode, placing.plan, place)
    return made, rows
