"""Conversions between dtypes of floating point around attention, whose kernels sum in float32 what they read in halves.

In:  `%w = to(softmax(to(%s, float32), -1), bfloat16)`, `%s` in bfloat16. Out: `%w` is the softmax of `%s`; what the
model rounds in between, a kernel does not.
"""

from functools import reduce
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.insert import call
from sparsify.passes.graph.operators import COPIES, operator_name, tensor_value
from sparsify.passes.region.sparse_operand import HALVES

# What changes entries by rounding them alone, as some model or Dynamo writes it.
CONVERSIONS: Final = COPIES - {"detach"} | {
    "type",
    "type_as",
    "float",
    "half",
    "bfloat16",
    "double",
    "expand",
}


def are_numbers(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether both dtypes are of floating point, or the same.

    >>> are_numbers(torch.bfloat16, torch.float32), are_numbers(torch.int64, torch.float32)
    (True, False)
    """
    return one == other or (one.is_floating_point and other.is_floating_point)


def keeps_values(node: fx.Node, operand: Any) -> bool:
    """Whether a node is its operand in other memory or in another dtype of floating point."""
    before, after = tensor_value(operand), tensor_value(node)
    return (
        operator_name(node) in CONVERSIONS
        and before is not None
        and after is not None
        and are_numbers(before.dtype, after.dtype)
        and tuple(map(str, before.shape)) == tuple(map(str, after.shape))
    )


def not_widened(node: fx.Node) -> fx.Node:
    """`%q` of `to(%q, float32)`, `%q` of halves, which kernels read as float32; other nodes themselves."""
    source = node.args[0] if node.args else None
    before, after = tensor_value(source), tensor_value(node)
    if before is None or after is None or not keeps_values(node, source):
        return node
    is_widened = before.dtype in HALVES and after.dtype == torch.float32
    return source if is_widened and isinstance(source, fx.Node) else node


def widest(nodes: list[fx.Node]) -> torch.dtype:
    """The dtype that holds the numbers of all tensors; truth values are none."""
    kinds = [value.dtype for node in nodes if (value := tensor_value(node)) is not None]
    return reduce(torch.promote_types, [kind for kind in kinds if kind.is_floating_point])


def in_dtype(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """A tensor in a dtype, where its graph inserts; itself where it has that dtype, or holds truth values."""
    value = tensor_value(node)
    assert value is not None, "numbers are of tensors"
    return node if value.dtype in (dtype, torch.bool) else call(torch.ops.aten.to.dtype, node, dtype)


def is_within(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether what is computed in `dtype` is as exact where tensors are of `other`, halves being read as float32.

    >>> is_within(torch.float32, torch.bfloat16), is_within(torch.float64, torch.float32)
    (True, False)
    """
    wide = torch.promote_types(other, torch.float32)
    return torch.promote_types(dtype, wide) == wide
