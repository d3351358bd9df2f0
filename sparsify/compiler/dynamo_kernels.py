"""The operators `sparsify::einsum` and `sparsify::evaluate` in Dynamo graphs.

In: text and tensors, as passed by `in_graph` to the operators. Out: the results, as a list.

Imported lazily by the first call of such an operator: the decorator loads Dynamo.
"""

from collections.abc import Callable
from typing import Any

import torch

from sparsify.compiler.kernel.transforms import dynamo_nodes
from sparsify.compiler.operands.sort_operands import ascending


@torch.compiler.disable(reason="what a node of a graph is made of is not traced by Dynamo")  # type: ignore[untyped-decorator]
def einsum_of_graph(
    kernel_of: Callable[..., Any],
    subscripts: str,
    operands: list[torch.Tensor],
    format: str | None,
    schedule: str | None,
) -> torch.Tensor:
    """The result of an einsum; `kernel_of` is `evaluate.einsum_kernel`."""
    given = tuple(map(ascending, operands))
    kernel, order = kernel_of(subscripts, given, format, schedule)
    found: torch.Tensor = kernel(*[given[place] for place in order])
    return found


@torch.compiler.disable(reason="what a node of a graph is made of is not traced by Dynamo")  # type: ignore[untyped-decorator]
def evaluate_of_graph(
    kernel_of: Callable[..., Any],
    text: str, outputs: list[str], named: list[str], formats: list[str], schedule: str | None, extents: list[str],
    sizes: list[int], names: list[str], operands: list[torch.Tensor], words: list[str], scalars: list[Any],
) -> list[torch.Tensor]:  # fmt: skip
    """The results of statements; `kernel_of` is `evaluate.evaluate_kernel`."""
    wanted = dict(zip(named, formats, strict=True))
    format = wanted.get(dynamo_nodes.LAST, wanted or None)
    given = {name: int(size) for name, size in zip(extents, sizes, strict=True)}
    by_name: dict[str, Any] = dict(zip(names, map(ascending, operands), strict=True))
    by_name |= {word: _number(scalar) for word, scalar in zip(words, scalars, strict=True)}
    kernel = kernel_of(text, outputs or None, format=format, schedule=schedule, sizes=given, **by_name)
    found = kernel(*[by_name[name] for name in kernel.program.inputs])
    return list(found) if isinstance(found, tuple) else [found]


def _number(scalar: Any) -> Any:
    """The number itself; a symbol of a traced graph becomes a constant, which adds a guard."""
    if isinstance(scalar, torch.SymFloat):
        return float(scalar)
    return int(scalar) if isinstance(scalar, torch.SymInt) else scalar
