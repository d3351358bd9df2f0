"""Rows that experts compute, as expressions over the entries of a gate.

In: `%h = relu(einsum("td,ehd->teh", %x, %u))`. Out: `relu(sum(i0, X0[t,i0] * W1[e,h,i0]))`.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import argument, is_inactive_dropout, operator_name, tensor_value
from sparsify.passes.lift.experts import capacity

UNARY: Final = {
    "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "neg": "neg", "abs": "abs", "sqrt":
    "sqrt", "silu": "silu", "square": "square", "sin": "sin", "cos": "cos", "erf": "erf",
}  # fmt: skip
SIGNS: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
CLAMPS: Final = frozenset({"clamp", "clamp_min", "clamp_max"})


@dataclass(frozen=True)
class Part:
    """One of `count` equal parts of a mode, along which `index` runs; each `count`-th entry where they alternate."""

    index: str
    place: int
    count: int
    alternates: bool = False


Mode = str | Part | None


@dataclass
class Rows:
    """Rows of experts as expressions over `t`, `e` and `h`.

    Attributes:
        node: the mixture.
        dtype: of all that is read.
        combine: how tokens come back from slots of the experts; they have one mode in the expressions.
        dispatch: how they come there.
        names: of the tensors that are read, in the program.
        covered: nodes that the expressions compute.
        why: what is in the way of one.
        seen: what was read inside of experts, at which modes.
        sums: how many there are.
    """

    node: fx.Node
    dtype: torch.dtype
    combine: capacity.Combine
    dispatch: capacity.Dispatch | None = None
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
        if not self._is_of_entry(modes):
            return self._outside(node, modes)
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
        if name in ("einsum", "bmm"):
            return self._sent(node, modes) or self._product(node, modes)
        if name == "getitem":
            return self._half(node, modes)
        if name == "slice":
            return self._slice(node, modes)
        if name in CLAMPS:
            return self._clamped(node, name, modes)
        if is_inactive_dropout(node):
            return self.read(node.args[0], modes)
        function = UNARY.get(name)
        if name == "gelu":
            function = "gelu_tanh" if argument(node, 1, "approximate", "none") == "tanh" else "gelu"
        if function is not None:
            inside = self.read(node.args[0], modes)
            return None if inside is None else f"{function}({inside})"
        if name == "mul" and (swish := swish_of(node)) is not None:
            return self._swish(swish, modes)
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
            if self._is_of_entry(places):
                side = self._sent(operand, places) or self._repeated(operand, places)
            else:
                side = self._outside(operand, places)
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

    def _slice(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """One of equal parts of the rows, `x[..., :4]` of 8, or every second entry, `x[..., ::2]`."""
        whole, part = tensor_value(node.args[0]), tensor_value(node)
        assert whole is not None and part is not None, "parts are of tensors"
        extents = str(whole.shape[-1]), str(part.shape[-1])
        start, step = argument(node, 2, "start") or 0, argument(node, 4, "step", 1)
        if argument(node, 1, "dim", 0) not in (-1, whole.dim() - 1) or not isinstance(modes[-1], str):
            return None
        if not all(extent.isdigit() for extent in extents) or not isinstance(start, int):
            return None
        count, rest = divmod(int(extents[0]), max(int(extents[1]), 1))
        start = start + int(extents[0]) if start < 0 else start
        place, offset = (start, 0) if step > 1 else divmod(start, int(extents[1]) or 1)
        if rest or offset or step not in (1, count) or place >= count:
            return None
        return self.read(node.args[0], (*modes[:-1], Part(modes[-1], place, count, step > 1)))

    def _clamped(self, node: fx.Node, name: str, modes: tuple[Mode, ...]) -> str | None:
        """An entry that is no less than one number and no more than another."""
        least = None if name == "clamp_max" else argument(node, 1, "min")
        most = argument(node, 1 if name == "clamp_max" else 2, "max")
        if any(not isinstance(bound, int | float | None) for bound in (least, most)):
            return None
        found = self.read(node.args[0], modes)
        if found is not None and least is not None:
            found = f"max({found}, {float(least)})"
        return found if found is None or most is None else f"min({found}, {float(most)})"

    def _swish(self, found: "Swish", modes: tuple[Mode, ...]) -> str | None:
        """`x * sigmoid(a * x) -> silu(x * a) / a`, which reads `x` once."""
        inside = self.read(found.base, modes)
        if inside is None:
            return None
        self.covered += found.covered
        return f"silu({inside})" if found.scale == 1 else f"(silu({inside} * {found.scale}) / {found.scale})"

    def _is_of_entry(self, modes: tuple[Mode, ...]) -> bool:
        """Whether a tensor has a row for each token and expert, or for each slot."""
        return self.combine.entry <= {mode.index if isinstance(mode, Part) else mode for mode in modes}

    def _outside(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """The entry of a tensor that experts read; which slot of an expert a token is in they cannot."""
        value = tensor_value(node)
        assert value is not None, "experts read tensors"
        of_slots = self.combine.entry - {"e"}
        extents = zip(modes, value.shape, strict=True)
        modes = tuple(None if mode in of_slots and str(n) == "1" else mode for mode, n in extents)
        if of_slots & set(modes):
            self.why = f"{node.name} depends on slots, not only on the tokens in them"
            return None
        return self.leaf(node, modes)

    def _sent(self, node: fx.Node, modes: tuple[Mode, ...]) -> str | None:
        """The rows of the tokens that slots hold."""
        entry, found = self.combine.entry, capacity.dispatch_of(node, modes, self.combine)
        if found is None:
            return None
        if self.dispatch is not None and found.choice is not self.dispatch.choice:
            self.why = f"{found.choice.name} and {self.dispatch.choice.name} send tokens to the same slots"
            return None
        self.dispatch = found
        self.covered.append(node)
        inside = next(mode for mode in modes if mode not in entry)
        return self.leaf(capacity.rows_of(found), ("t", inside))

    def gate(self) -> capacity.Gate | str:
        """The gate of experts that has the weights of their slots; or why there is none."""
        if self.dispatch is None:
            return "what its experts read are no tokens that a sum sends to their slots"
        return capacity.gate_of(self.combine, self.dispatch)

    def leaf(self, node: fx.Node, modes: tuple[Mode, ...]) -> str:
        """The access to a tensor that is computed outside."""
        if operator_name(node) in ("unsqueeze", "expand") and None in modes:
            found = self._broadcast(node, operator_name(node), modes)
            assert found is not None, "tensors from outside are read as they are"
            return found
        for place, mode in enumerate(modes):
            if isinstance(mode, Part):
                node = parts_of(node, place, mode)
                read = f"{mode.place}", mode.index
                modes = (*modes[:place], *(read[::-1] if mode.alternates else read), *modes[place + 1 :])
                break
        if node not in self.names:
            kind = "W" if len(modes) > 2 else "X"
            self.names[node] = f"{kind}{len(self.names)}"
        return f"{self.names[node]}[{','.join('0' if mode is None else str(mode) for mode in modes)}]"


@dataclass(frozen=True)
class Swish:
    """`x * sigmoid(a * x)`.

    Attributes:
        base: `x`.
        scale: `a`, not 0.
        covered: nodes besides.
    """

    base: fx.Node
    scale: float
    covered: tuple[fx.Node, ...]


def swish_of(node: fx.Node) -> Swish | None:
    """The function of `x` that a product is; `None` for other products."""
    for base, factor in (node.args[:2], node.args[1::-1]):
        if (
            not isinstance(base, fx.Node)
            or not isinstance(factor, fx.Node)
            or operator_name(factor) != "sigmoid"
        ):
            continue
        inside: Any = factor.args[0]
        if inside is base:
            return Swish(base, 1.0, (factor,))
        if operator_name(inside) != "mul" or base not in inside.args[:2]:
            continue
        scale = inside.args[1] if inside.args[0] is base else inside.args[0]
        if isinstance(scale, int | float) and scale != 0:
            return Swish(base, float(scale), (inside, factor))
    return None


def parts_of(node: fx.Node, place: int, part: Part) -> fx.Node:
    """A view of a tensor with a mode as its parts; those that alternate are its last mode, others its first one."""
    value = tensor_value(node)
    assert value is not None, "operands are tensors"
    parts = part.count, value.shape[place] // part.count
    shape = [*value.shape[:place], *(parts[::-1] if part.alternates else parts), *value.shape[place + 1 :]]
    known = next((u for u in node.users if operator_name(u) == "view" and info(u).parts == shape), None)
    if known is not None:
        return known
    with node.graph.inserting_after(node):
        view = node.graph.call_function(torch.ops.aten.reshape.default, (node, shape))
    view.meta["val"] = value.reshape(shape)
    set_info(view, parts=shape)
    return view
