"""Einsums and programs as nodes of a Dynamo graph: operands are tensors, all other arguments text.

In: `sparsify.einsum("ij,jk->ik", A, x)` inside of `torch.compile`. Out: the node
`torch.ops.sparsify.einsum("ij,jk->ik", [A, x], None, None)`; AOTAutograd lowers the node to
`torch.ops.sparsify.compute` on the parts of A.

Dynamo executes the module symbolically, so the code suits Dynamo: no caches, no classes of the package.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

EINSUM: Final = "einsum(str subscripts, Tensor[] operands, str? format, str? schedule) -> Tensor"
EVALUATE: Final = (
    "evaluate(str text, str[] outputs, str[] named, str[] formats, str? schedule, str[] extents, SymInt[] sizes, "
    "str[] names, Tensor[] operands, str[] words, Scalar[] scalars) -> Tensor[]"
)
# Key of the last result, to which a `format=` other than a mapping applies.
LAST: Final = ""


def einsum(subscripts: str, operands: Sequence[torch.Tensor], format: Any, schedule: Any) -> torch.Tensor:
    """The result of an einsum."""
    found: torch.Tensor = torch.ops.sparsify.einsum(
        subscripts, list(operands), _text(format), _text(schedule)
    )
    return found


def evaluate(
    text: str,
    outputs: str | Sequence[str] | None,
    format: Any,
    schedule: Any,
    sizes: Mapping[str, int] | None,
    operands: Mapping[str, Any],
) -> Any:
    """The results of statements."""
    formats = format if isinstance(format, Mapping) else {} if format is None else {LAST: format}
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    scalars = {name: value for name, value in operands.items() if name not in tensors}
    results = [outputs] if isinstance(outputs, str) else list(outputs or ())
    given = dict(sizes or {})
    found = torch.ops.sparsify.evaluate(
        text,
        results,
        list(formats),
        [str(wanted) for wanted in formats.values()],
        _text(schedule),
        list(given),
        list(given.values()),
        list(tensors),
        list(tensors.values()),
        list(scalars),
        list(scalars.values()),
    )
    return found[0] if len(found) == 1 else tuple(found)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
