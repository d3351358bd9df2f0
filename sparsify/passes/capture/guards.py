"""Shape guards of a captured graph: the outcomes of comparisons in the model's code.

In:  the graph of a cache that keeps the last 5 of `s + 1` keys, captured with `s = 2`. Out: `s + 1 < 5` as a condition
on the extents of calls; other calls need another graph.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx

from sparsify.errors import CaptureError

MATH: Final = (
    *("floor", "ceil", "trunc", "sqrt", "log2", "inf", "nan"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
)
# Names called by conditions: functions of numbers.
FUNCTIONS: Final = {
    "math": frozenset(MATH),
    "torch": frozenset(("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite", "_sym_sqrt")),
    "": frozenset(("min", "max", "abs", "int", "float", "round", "bool")),
}
SYNTAX: Final = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.Call,
        ast.Name,
        ast.Load,
    ),
    *(ast.Attribute, ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


@dataclass(frozen=True)
class Holds:
    """A condition on the extents of calls.

    Attributes:
        text: Python expression with comparisons, arithmetic and the functions of `FUNCTIONS`.
        names: names of extents in the text, by extent.
    """

    text: str
    names: Mapping[str, str]

    def __call__(self, extents: Mapping[str, int]) -> bool:
        """Whether the named extents fulfil the condition."""
        try:
            return bool(self._check(*[extents[name] for name in self.names]))
        except ZeroDivisionError:  # a divisor of a capture for larger extents
            return False

    @cached_property
    def _check(self) -> Callable[..., Any]:
        tree = ast.parse(self.text, mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, SYNTAX) or (
                isinstance(node, ast.Call | ast.Attribute) and not _is_known(node)
            ):
                raise CaptureError(f"{self.text!r} is no condition on extents", "save the model again")
        code = f"lambda {', '.join(self.names.values())}: {self.text}"
        if not all(name.isidentifier() for name in self.names.values()):
            raise CaptureError(f"{code!r} is no condition on extents", "save the model again")
        check: Callable[..., Any] = eval(code, {"math": math, "torch": torch})
        return check


def _is_known(node: ast.Call | ast.Attribute) -> bool:
    """Whether a call, or its function, is a known function of numbers."""
    match node:
        case ast.Call(ast.Name(name), _, []):
            return name in FUNCTIONS[""]
        case ast.Call(ast.Attribute(), _, []):
            return True
        case ast.Attribute(ast.Name(module), name):
            return name in FUNCTIONS.get(module, ())
    return False


def granted(graph: fx.Graph) -> Holds | None:
    """The shape guard of a captured graph, on extents by name; None for an unconditional graph."""
    symbols = _symbols(graph)
    if not symbols:
        return None
    environment = next(iter(symbols.values())).node.shape_env
    # A symbol keeps its name; formulas are guards if all of their symbols are extents of inputs themselves.
    names = {name: name if name.isidentifier() else f"formula{number}" for number, name in enumerate(symbols)}
    plain = {extent.node.expr for name, extent in symbols.items() if name.isidentifier()}
    conditions = [environment.replace(guard.expr) for guard in environment.guards]
    texts = [_text(condition) for condition in conditions if condition.free_symbols <= plain]
    texts += [
        f"{_text(extent.node.expr)} == {names[name]}"
        for name, extent in symbols.items()
        if not name.isidentifier() and extent.node.expr.free_symbols <= plain
    ]
    texts = [text for text in dict.fromkeys(texts) if text != "True"]
    if not texts:
        return None
    guard_text = " and ".join(f"({text})" for text in texts)
    return Holds(guard_text, names)


def _symbols(graph: fx.Graph) -> dict[str, torch.SymInt]:
    """The variable extents of inputs, by name."""
    return {
        str(extent): extent
        for node in graph.find_nodes(op="placeholder")
        for extent in getattr(node.meta.get("val"), "shape", ())
        if isinstance(extent, torch.SymInt) and not str(extent).isdigit()
    }


def _text(expression: Any) -> str:
    """A formula of extents in Python."""
    from torch.utils._sympy.printers import PythonPrinter  # imports sympy, already loaded by export

    return str(PythonPrinter().doprint(expression))
