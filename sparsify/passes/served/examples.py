"""Example calls of a served model: call shapes seen before saving, with random entries.

In: a graph, and its earlier calls. Out: plain data, `{"met": [[[8, 128]]], "ranges": [[0, 29999]]}`, and arguments of
similar calls. Entries of the calls themselves are in no file; of integer tensors only the range is stored.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.passes.capture import calls
from sparsify.passes.capture.calls import CallShape
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.variants.variant import Variant

# Variable extents of a graph without calls.
USUAL: Final = 8
MOST: Final = 8
Range = list[int] | None


def encoded_examples(module: SparseModule, variant: Variant) -> dict[str, Any]:
    """The shapes of a graph's calls, and the ranges of their integer tensors."""
    met = [[list(shape) for shape in shapes] for shapes in variant.fitting]
    usual = [[USUAL if isinstance(n, str) else n for n in extents] for extents in variant.captured.extents]
    return {"met": sorted(met or [usual])[:MOST], "ranges": ranges(module, variant)}


def ranges(module: SparseModule, variant: Variant) -> list[Range]:
    """The minimum and maximum of each integer tensor of a graph, as far as its example is still alive."""
    if module._example is None or module._example[0].shape != variant.captured.shape:
        return [None for _ in variant.captured.extents]
    values = [reference() for reference in module._example[1]]
    if len(values) != len(variant.captured.extents):
        return [None for _ in variant.captured.extents]
    return [
        [int(value.min()), int(value.max())]
        if isinstance(value, Tensor)
        and value.numel()
        and not value.is_floating_point()
        and not value.is_complex()
        else None
        for value in values
    ]


def examples(shape: CallShape, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Named arguments of calls of a kind, with random entries; none for calls with other than plain classes."""
    if shape.key is None:
        return
    generator = torch.Generator().manual_seed(0)
    for shapes in data["met"]:
        tensors = iter([(tuple(one), known) for one, known in zip(shapes, data["ranges"], strict=True)])
        yield _value(shape.key, tensors, generator)


def _value(told: Any, tensors: Iterator[tuple[tuple[int, ...], Range]], generator: torch.Generator) -> Any:
    """A value that fits a description by `calls.structure_key`."""
    if told[0] == "tensor":
        shape, known = next(tensors)
        return drawn(shape, told[2], known, generator)
    kind = told[0]
    if kind is dict:
        return {name: _value(part, tensors, generator) for name, part in zip(told[1], told[2], strict=True)}
    if kind in calls.LISTS:
        return kind(_value(part, tensors, generator) for part in told[1])
    return ast.literal_eval(told[1]) if kind is float else told[1]


def drawn(shape: Sequence[int], dtype: torch.dtype, known: Range, generator: torch.Generator) -> Tensor:
    """A tensor with normal entries, or with integers of a range; ones for an unknown range.

    Ones are valid rows of tables, and entries kept by masks.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
    if known is None:
        return torch.ones(shape, dtype=dtype)
    return torch.randint(known[0], known[1] + 1, tuple(shape), generator=generator).to(dtype)
