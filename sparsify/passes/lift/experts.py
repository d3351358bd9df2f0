"""A mixture of experts as one einsum program over the entries of its gate.

In:  `%a = einsum("td,ehd->teh", %x, %u); %h = relu(%a); %z = einsum("teh,eoh->teo", %h, %v);
      %y = einsum("te,teo->to", %gate, %z)`, `%gate` marked as a gate: 0 where a token does not choose an expert.
Out: a region `H[t,e,h] = G[t,e] * relu(sum(i0, X[t,i0] * U[e,h,i0])); Y[t,o] += H[t,e,h] * V[e,o,h]`.

Between the two products with the matrices of the experts there may be functions of single entries, biases, and halves
of the rows, as gated units have them.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Const
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.base import Mark
from sparsify.passes.lift.fragment import UNARY
from sparsify.passes.lift.gates import places
from sparsify.passes.lift.matrix import Matrix
from sparsify.passes.operators import argument, is_inactive_dropout, operator_name, tensor_value
from sparsify.passes.region import Region
from sparsify.storage.format import Format

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64"}
SIGNS: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# How experts list their tokens.
BY_EXPERT: Final = Format("csc")
# The note of their regions.
MIXTURE: Final = "mixture of experts"


@dataclass(frozen=True)
class Part:
    """One of `count` equal parts of a mode, along which `index` runs."""

    index: str
    place: int
    count: int


Mode = str | Part | None


@dataclass(frozen=True)
class Einsum:
    """An einsum of two or three operands: letters of each, and of the result."""

    operands: tuple[tuple[fx.Node, str], ...]
    output: str


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        node: the weighted sum over the experts, [tokens, channels].
        gate: what it is weighted with, [tokens, experts].
        results: of all experts, [tokens, experts, channels]; or the einsum that takes their rows and the last matrices.
        covered: nodes of the weighted sum besides.
    """

    node: fx.Node
    gate: fx.Node
    results: fx.Node | Einsum
    covered: tuple[fx.Node, ...] = ()


def recognise(node: fx.Node) -> Experts | None:
    """The mixture of which `node` is the weighted sum, `None` for other nodes."""
    value = tensor_value(node)
    if value is None or value.dim() != 2 or value.dtype not in DTYPES:
        return None
    if operator_name(node) == "sum":
        return _product_and_sum(node)
    found = einsum_of(node)
    if found is None or len(found.output) != 2:
        return None
    token, channel = found.output[0], found.output[1]
    gates = [(n, at) for n, at in found.operands if len(at) == 2 and at[0] == token and at[1] != channel]
    if len(gates) != 1:
        return None
    gate, expert = gates[0][0], gates[0][1][1]
    rest = tuple(pair for pair in found.operands if pair[0] is not gate)
    if len(rest) == 1 and set(rest[0][1]) == {token, expert, channel}:
        (results, letters) = rest[0]
        return Experts(node, gate, results) if letters == token + expert + channel else None
    if len(rest) == 2:
        return Experts(node, gate, Einsum(rest, token + expert + channel))
    return None


def _product_and_sum(node: fx.Node) -> Experts | None:
    """`(gate.unsqueeze(-1) * results).sum(1)`."""
    product = node.args[0]
    dims = argument(node, 1, "dim")
    if dims not in (1, [1], (1,)) or argument(node, 2, "keepdim", False) or not isinstance(product, fx.Node):
        return None
    value = tensor_value(product)
    if operator_name(product) != "mul" or value is None or value.dim() != 3 or len(product.users) != 1:
        return None
    for column, results in (product.args[:2], product.args[1::-1]):
        if not isinstance(column, fx.Node) or not isinstance(results, fx.Node):
            continue
        shape = tensor_value(results)
        is_column = operator_name(column) == "unsqueeze" and argument(column, 1, "dim") in (-1, 2)
        if is_column and shape is not None and shape.dim() == 3:
            gate: Any = column.args[0]
            return Experts(node, gate, results, (column, product))
    return None


def einsum_of(node: Any) -> Einsum | None:
    """The einsum that a node computes, `None` for other nodes and for those with an ellipsis or a repeated letter."""
    if not isinstance(node, fx.Node) or operator_name(node) != "einsum" or not isinstance(node.args[0], str):
        return None
    text = node.args[0].replace(" ", "")
    operands: Any = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
    left, arrow, right = text.partition("->")
    letters = left.split(",")
    if not arrow or len(letters) != len(operands) or "." in text:
        return None
    if any(len(set(at)) < len(at) for at in (*letters, right)) or len(operands) not in (2, 3):
        return None
    return Einsum(tuple(zip(operands, letters, strict=True)), right)


def mark_of(match: Experts) -> Mark | None:
    """The mark of the gate by a rule."""
    mark = match.gate.meta.get("sparse")
    return mark if isinstance(mark, Mark) and mark.role == "gate" and not mark.derived else None


def experts_region(match: Experts, mark: Mark) -> Region | str:
    """The region of a mixture, or why there is none."""
    value = tensor_value(match.node)
    assert value is not None, "a mixture is a tensor"
    rows = Rows(match.node, value.dtype)
    text = program_text(match, rows)
    if text is None:
        return rows.why or "what its experts compute is not made of products, functions of entries and biases"
    covered = list(dict.fromkeys([*rows.covered, *match.covered, match.node]))
    if leaves := [n for n in covered[:-1] if any(user not in covered for user in n.users)]:
        return f"{leaves[0].name} is read elsewhere too"
    matrix = Matrix(
        f"A_{match.gate.name}", None, None, None, None, match.gate, False, value.dtype, mark,
        packed=BY_EXPERT if mark.format == "auto" else None, places=places(match.gate),
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
    names = {operand.name: short for short, operand in named.items()} | {match.node.name: "Y"}
    statement = (match.node, ("t", "o"), Const(0))
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
    if len(found.output) != 3:
        return None
    names = dict(zip(found.output, ("t", "e", "o"), strict=True))
    summed = {letter for _, at in found.operands for letter in at} - set(names)
    matrices = [(n, at) for n, at in found.operands if set(at) == {*found.output[1:], *summed}]
    if len(summed) != 1 or len(matrices) != 1 or len(found.operands) != 2:
        return None
    names[summed.pop()] = "h"
    ((matrix, at),) = matrices
    (operand, letters), *_ = (pair for pair in found.operands if pair[0] is not matrix)
    last = rows.leaf(matrix, tuple(names[letter] for letter in at))
    if {names[letter] for letter in letters} == {"t", "h"}:
        first = rows.leaf(operand, tuple(names[letter] for letter in letters))
        return f"Y[t,o] += G[t,e] * {first} * {last}"
    inside = rows.read(operand, tuple(names[letter] for letter in letters))
    if inside is None:
        return None
    if "sum(" not in inside:
        return f"Y[t,o] += G[t,e] * {inside} * {last}"
    return f"H[t,e,h] = G[t,e] * {inside}\nY[t,o] += H[t,e,h] * {last}"


@dataclass
class Rows:
    """Rows of experts as expressions over `t`, `e` and `h`.

    Attributes:
        node: the mixture.
        dtype: of all that is read.
        names: of the tensors that are read, in the program.
        covered: nodes that the expressions compute.
        why: what is in the way of one.
        seen: what was read inside of experts, at which modes.
        sums: how many there are.
    """

    node: fx.Node
    dtype: torch.dtype
    names: dict[fx.Node, str] = field(default_factory=dict)
    covered: list[fx.Node] = field(default_factory=list)
    why: str = ""
    seen: set[tuple[fx.Node, tuple[Mode, ...]]] = field(default_factory=set)
    sums: int = 0

    def read(self, node: Any, modes: tuple[Mode, ...]) -> str | None:
        """The entry of a tensor at these modes, `None` where it is none of single entries and products."""
        if isinstance(node, int | float) and not isinstance(node, bool):
            return repr(node)
        value = tensor_value(node)
        if value is None or value.dtype != self.dtype:
            return None
        has = {mode.index if isinstance(mode, Part) else mode for mode in modes}
        if not {"t", "e"} <= has:
            return self.leaf(node, modes)
        name = operator_name(node)
        if name in ("unsqueeze", "expand"):
            return self._broadcast(node, name, modes)
        if (node, modes) in self.seen:
            self.why = f"{node.name} is read in two places, and would be computed for each"
            return None
        self.seen.add((node, modes))
        found = self._inside(node, name, modes)
        if found is not None:
            self.covered.append(node)
        elif not self.why:
            self.why = f"{node.name} is {name or node.op}, which has no form for single experts"
        return found

    def _inside(self, node: fx.Node, name: str, modes: tuple[Mode, ...]) -> str | None:
        """The entry of a tensor that has rows for each token and expert."""
        if name == "einsum":
            return self._product(node, modes)
        if name == "getitem":
            return self._half(node, modes)
        if is_inactive_dropout(node):
            return self.read(node.args[0], modes)
        function = UNARY.get(name)
        if name == "gelu":
            function = "gelu_tanh" if argument(node, 1, "approximate", "none") == "tanh" else "gelu"
        if function is not None:
            inside = self.read(node.args[0], modes)
            return None if inside is None else f"{function}({inside})"
        if name not in SIGNS or argument(node, 2, "alpha", 1) != 1 or len(node.args) < 2:
            return None
        sides = [self._aligned(side, node, modes) for side in node.args[:2]]
        return None if None in sides else f"({sides[0]} {SIGNS[name]} {sides[1]})"

    def _aligned(self, side: Any, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """An operand of a function of entries, which may have fewer modes, or modes of 1."""
        value, result = tensor_value(side), tensor_value(node)
        if value is None or result is None:
            return self.read(side, modes)
        offset = result.dim() - value.dim()
        kept = [
            None if str(extent) == "1" != str(result.shape[offset + mode]) else modes[offset + mode]
            for mode, extent in enumerate(value.shape)
        ]
        return self.read(side, tuple(kept))

    def _broadcast(self, node: fx.Node, name: str, modes: tuple[Mode, ...]) -> str | None:
        """A tensor that repeats rows of another."""
        base: Any = node.args[0]
        inner = tensor_value(base)
        assert inner is not None, "views are of tensors"
        if name == "unsqueeze":
            place = argument(node, 1, "dim") % len(modes)
            kept = modes[:place] + modes[place + 1 :]
        else:
            last = modes[len(modes) - inner.dim() :]
            kept = tuple(None if str(n) == "1" else mode for n, mode in zip(inner.shape, last, strict=True))
        found = self.read(base, kept)
        if found is not None:
            self.covered.append(node)
        return found

    def _product(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """A sum over the row of a token times the matrix of an expert."""
        found = einsum_of(node)
        if found is None or len(found.operands) != 2:
            return None
        indices: dict[str, Mode] = dict(zip(found.output, modes, strict=True))
        summed = sorted({letter for _, at in found.operands for letter in at} - set(indices))
        if len(summed) != 1:
            return None
        inner = f"i{self.sums}"
        indices[summed[0]] = inner
        self.sums += 1
        sides = []
        for operand, at in found.operands:
            places = tuple(indices[letter] for letter in at)
            if {"t", "e"} <= set(places):
                side = self._repeated(operand, places)
            else:
                side = self.leaf(operand, places)
            if side is None:
                return None
            sides.append(side)
        return f"sum({inner}, {sides[0]} * {sides[1]})"

    def _repeated(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """The rows of tokens, the same for each expert; those that experts computed are sums of their own."""
        if operator_name(node) not in ("unsqueeze", "expand"):
            self.why = f"{node.name} is what experts computed, from which they compute a product"
            return None
        return self._broadcast(node, operator_name(node), modes)

    def _half(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """One of equal parts of the rows, `chunk(2, -1)[0]`."""
        parts, place = node.args
        if not isinstance(parts, fx.Node) or operator_name(parts) not in ("chunk", "split"):
            return None
        whole, part = tensor_value(parts.args[0]), tensor_value(node)
        assert whole is not None and part is not None, "parts are of tensors"
        if argument(parts, 2, "dim", 0) not in (-1, whole.dim() - 1):
            return None
        extents = str(whole.shape[-1]), str(part.shape[-1])
        if not all(extent.isdigit() for extent in extents) or int(extents[0]) % int(extents[1]):
            return None
        count = int(extents[0]) // int(extents[1])
        if not isinstance(modes[-1], str) or not isinstance(place, int):
            return None
        self.covered.append(parts)
        return self.read(parts.args[0], (*modes[:-1], Part(modes[-1], place % count, count)))

    def leaf(self, node: fx.Node, modes: tuple[Mode, ...]) -> str:
        """The access to a tensor that is computed outside."""
        if operator_name(node) in ("unsqueeze", "expand") and None in modes:
            found = self._broadcast(node, operator_name(node), modes)
            assert found is not None, "tensors from outside are read as they are"
            return found
        for place, mode in enumerate(modes):
            if isinstance(mode, Part):
                node = parts_of(node, place, mode.count, self.node)
                modes = (*modes[:place], f"{mode.place}", mode.index, *modes[place + 1 :])
                break
        if node not in self.names:
            kind = "W" if len(modes) > 2 else "X"
            self.names[node] = f"{kind}{len(self.names)}"
        return f"{self.names[node]}[{','.join('0' if mode is None else str(mode) for mode in modes)}]"


def parts_of(node: fx.Node, place: int, count: int, user: fx.Node) -> fx.Node:
    """A view of a tensor with a mode as `count` parts."""
    value = tensor_value(node)
    assert value is not None, "operands are tensors"
    shape = [*value.shape[:place], count, value.shape[place] // count, *value.shape[place + 1 :]]
    known = next((u for u in node.users if operator_name(u) == "view" and u.meta.get("parts") == shape), None)
    if known is not None:
        return known
    with node.graph.inserting_after(node):
        view = node.graph.call_function(torch.ops.aten.reshape.default, (node, shape))
    view.meta["val"], view.meta["parts"] = value.reshape(shape), shape
    return view
