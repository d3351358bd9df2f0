"""Constant analysis of tensors: one number, or 0, 1, 2, ... along a mode.

In: `%p = expand(unsqueeze(arange(n), 0), [b, n])`, `%s = cumsum(ne(diff(%p), 1), -1)`.
Out: `%p` is counted along mode -1; `%s` is 0 everywhere, so that `%s[b, i] == %s[b, j]` always holds.

Decoders build masks in this way, for several texts packed into a row; with one text per row the masks keep everything.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.operators import COPIES, argument, operator_name, overwritten, tensor_value

# Operators that move numbers without changing the set of numbers.
MOVES: Final = COPIES | {"expand", "unsqueeze", "squeeze", "view", "slice", "select", "transpose", "index"}
# Operators that preserve counting.
COUNTS: Final = COPIES | {"unsqueeze", "add", "expand"}
CONSTANTS: Final = {"ones": 1, "ones_like": 1, "zeros": 0, "zeros_like": 0}
# Operators with possibly constant results, and with possibly counted results; for others the search for writes is
# skipped.
MAY_BE_CONSTANT: Final = MOVES | CONSTANTS.keys() | {"diff", "eq", "ne", "cumsum"}
MAY_COUNT: Final = COUNTS | {"arange", "index"}


def constant(node: Any) -> float | None:
    """The constant value of a tensor, None if unknown."""
    if not isinstance(node, fx.Node):
        return _number(node)
    return _constant(node, overwritten(node.graph)) if operator_name(node) in MAY_BE_CONSTANT else None


def counted_mode(node: Any) -> int | None:
    """The mode, from the end, along which a tensor counts 0, 1, 2, ..., constant along others; None otherwise."""
    if not isinstance(node, fx.Node) or operator_name(node) not in MAY_COUNT:
        return None
    return _counted_mode(node, overwritten(node.graph))


def _number(value: Any) -> float | None:
    return value if isinstance(value, bool | int | float) else None


def _constant(node: Any, written: frozenset[fx.Node]) -> float | None:
    if not isinstance(node, fx.Node):
        return _number(node)
    if tensor_value(node) is None or node in written:
        return None
    name = operator_name(node)
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name == "diff":
        return 1 if _is_counted_before(node, written) else None
    if name in ("eq", "ne"):
        first, second = (_constant(side, written) for side in node.args[:2])
        return None if first is None or second is None else int((first == second) == (name == "eq"))
    if name == "cumsum":
        return 0 if _constant(node.args[0], written) == 0 else None
    return _constant(node.args[0], written) if name in MOVES and _keeps(node) else None


def _counted_mode(node: Any, written: frozenset[fx.Node]) -> int | None:
    value, name = tensor_value(node), operator_name(node) if isinstance(node, fx.Node) else ""
    if value is None or node in written:
        return None
    if name == "arange":
        return -1 if len(node.args) == 1 else None
    if name == "index":
        return _picked(node, written)
    inner = _counted_mode(node.args[0], written) if name in COUNTS else None
    if inner is None or not _keeps(node):
        return None
    if name == "add":
        return inner if node.args[1] == 0 else None
    if name == "unsqueeze":
        position = value.dim() - 1 + inner
        before = int(argument(node, 1, "dim")) % value.dim()
        return position + int(before <= position) - value.dim()
    base = tensor_value(node.args[0])
    assert base is not None, "what is counted is a tensor"
    return inner if str(base.shape[inner]) == str(value.shape[inner]) else None


def _keeps(node: fx.Node) -> bool:
    """Whether a conversion preserves integers: `to(int64)` does, `to(int8)` and `to(bool)` may not."""
    base, value = tensor_value(node.args[0]), tensor_value(node)
    if base is None or value is None:
        return False
    return value.dtype in (base.dtype, torch.int64, torch.int32)


def _picked(node: fx.Node, written: frozenset[fx.Node]) -> int | None:
    """The mode along which `t[i, j]` is counted: the counted mode of the indices of `t`'s counted mode.

    `t[r, c] = c` and `c = j` give `t[i, j] = j`.
    """
    table, indices = tensor_value(node.args[0]), node.args[1]
    inner = _counted_mode(node.args[0], written)
    if inner is None or table is None or not isinstance(indices, list | tuple) or len(indices) != table.dim():
        return None
    return (
        None
        if any(tensor_value(index) is None for index in indices)
        else _counted_mode(indices[inner], written)
    )


def _is_counted_before(node: fx.Node, written: frozenset[fx.Node]) -> bool:
    """Whether differences are of 0, 1, 2, ... and of -1 before: `diff(p, prepend=p[:1] - 1)`."""
    numbers, before = node.args[0], argument(node, 3, "prepend")
    value = tensor_value(numbers)
    if value is None or argument(node, 1, "n", 1) != 1 or argument(node, 4, "append") is not None:
        return False
    mode = int(argument(node, 2, "dim", -1)) % value.dim() - value.dim()
    if _counted_mode(numbers, written) != mode:
        return False
    if before is None:
        return True
    first = before.args[0] if operator_name(before) == "sub" and argument(before, 1, "other") == 1 else None
    if not isinstance(first, fx.Node) or operator_name(first) != "slice":
        return False
    along = int(argument(first, 1, "dim", 0)) % value.dim() - value.dim()
    ends = argument(first, 2, "start", 0), argument(first, 3, "end"), argument(first, 4, "step", 1)
    return _counted_mode(first.args[0], written) == along == mode and ends == (0, 1, 1)
