"""Shape guards of a captured graph: the outcomes of comparisons in the model's code.

In:  the graph of a cache that keeps the last 5 of `s + 1` keys, captured with `s = 2`. Out: `s + 1 < 5` as a condition
on the extents of calls; other calls need another graph.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

Holds = Callable[[Mapping[str, int]], bool]


def granted(graph: fx.Graph) -> Holds | None:
    """Whether a captured graph is for inputs of some extents, by their names; None where it is for all."""
    symbols = _symbols(graph)
    if not symbols:
        return None
    environment = next(iter(symbols.values())).node.shape_env
    # A symbol goes by its own name; formulas hold where all of their symbols are extents of inputs themselves.
    names = {name: name if name.isidentifier() else f"formula{place}" for place, name in enumerate(symbols)}
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
    whole = " and ".join(f"({text})" for text in texts)
    check = eval(f"lambda {', '.join(names.values())}: {whole}", {"math": math, "torch": torch})

    def holds(known: Mapping[str, int]) -> bool:
        return bool(check(*[known[name] for name in names]))

    return holds


def _symbols(graph: fx.Graph) -> dict[str, torch.SymInt]:
    """The extents of inputs that vary, by their names."""
    return {
        str(extent): extent
        for node in graph.find_nodes(op="placeholder")
        for extent in getattr(node.meta.get("val"), "shape", ())
        if isinstance(extent, torch.SymInt) and not str(extent).isdigit()
    }


def _text(expression: Any) -> str:
    """A formula of extents in Python."""
    from torch.utils._sympy.printers import PythonPrinter  # with sympy, which export has loaded

    return str(PythonPrinter().doprint(expression))
