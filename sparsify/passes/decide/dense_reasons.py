"""Texts of refusals: why nodes reached by a rule are in no region.

In: `%y = conv_transpose1d(%x, %w)` with a sparse w. Out: "conv_transpose1d has no sparse form for w".
"""

from typing import Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import module_type, operator_name, tensor_value
from sparsify.passes.program.model import sizes_of
from sparsify.passes.region.sparse_operand import HALVES, Matrix, declared_sparse
from sparsify.passes.rules.scatters import SCATTERS
from sparsify.report import Choice

PRODUCTS: Final = ("linear", "matmul", "mm", "mv", "addmm")
FLOATS: Final = (torch.float32, torch.float64)


def reason_to_stay_dense(node: fx.Node) -> str:
    """The reason why a node reached by a rule is no einsum, "" for a node reached by no rule."""
    name, value = operator_name(node), tensor_value(node)
    if node.op not in ("call_function", "call_method") or value is None:
        return ""
    operand = next((arg for arg in node.all_input_nodes if declared_sparse(arg) is not None), None)
    matrix = declared_sparse(operand)
    if matrix is not None and matrix.scales is not None and sums_rows(node, operand, matrix):
        return f"{name} sums over the rows of {operand}, which have a scale each: int8 is for rows of outputs"
    if operand is not None and name in PRODUCTS and has_units(operand):
        return Choice(f"{operand.name} has one row or one column: torch's product reads it once")
    if operand is not None and not is_transposition(node):
        if value.dtype in HALVES:
            return f"{value.dtype} is supported for products with weights that get no gradients"
        is_supported = value.dtype in FLOATS
        return (
            f"{name} has no sparse form for {operand.name}"
            if is_supported
            else f"{value.dtype} is not supported yet"
        )
    weight = next((arg for arg in node.all_input_nodes if is_larger_weight(arg)), None)
    if weight is not None:
        return f"{name} has no sparse form for {weight.name}, which has {weight.meta['val'].dim()} modes"
    computed = next((arg for arg in node.all_input_nodes if is_computed(arg)), None)
    if computed is not None and name in PRODUCTS:
        if getattr(info(computed).mark, "outputs", None) is not None:
            return Choice(
                f"{computed.name} follows from a sparsified result; name it in the rule to skip its zeros"
            )
        return f"{computed.name} becomes sparse at run time; only inputs and parameters are packed"
    mark = info(node).mark
    if isinstance(mark, Mark) and mark.outputs is not None:
        return ""  # the report lists the readers that skip zeros
    if isinstance(mark, Mark) and mark.role == "gate" and not mark.derived:
        return "it is no gate: nothing weights the results of experts with it and sums them"
    if isinstance(mark, Mark) and not mark.derived:
        if name in SCATTERS and has_no_edges(node.graph):
            return Choice("the example inputs have no edges")
        kind = f" of {module_type(node)}" if module_type(node) else ""
        return f"{name}{kind} has no sparse form"
    return ""


def has_no_edges(graph: fx.Graph) -> bool:
    """Whether an integer input has no entries, such as the edge index of a graph without edges."""
    values = [tensor_value(node) for node in graph.find_nodes(op="placeholder")]
    return any(
        value is not None and not value.is_floating_point() and value.dim() > 1 and 0 in sizes_of(value)
        for value in values
    )


def has_units(node: fx.Node) -> bool:
    """Whether a tensor has a mode of extent 1, omitted in programs."""
    return 1 in sizes_of(node.meta["val"])


def sums_rows(node: fx.Node, operand: fx.Node | None, matrix: Matrix) -> bool:
    """Whether a product sums over the rows of a weight operand, direct or transposed."""
    name = operator_name(node)
    if name not in PRODUCTS:
        return False
    is_left = operand in node.args and node.args.index(operand) == int(name == "addmm")
    return matrix.transposed if is_left or name == "linear" else not matrix.transposed


def is_computed(node: fx.Node) -> bool:
    """Whether the node's zeros follow from a marked input."""
    mark = info(node).mark
    return isinstance(mark, Mark) and mark.derived and not is_transposition(node)


def is_larger_weight(node: fx.Node) -> bool:
    """Whether a rule makes a parameter of three modes or more sparse."""
    mark, value = info(node).mark, tensor_value(node)
    return isinstance(mark, Mark) and node.op == "get_attr" and value is not None and value.dim() > 2


def is_transposition(node: fx.Node) -> bool:
    """Whether a node only transposes its operand; the product after it reads the operand directly."""
    return operator_name(node) in ("t", "transpose", "permute")
