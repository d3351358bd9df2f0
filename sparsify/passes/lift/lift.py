"""Graph nodes to einsum fragments, by operator pattern and never by model or module name.

In: a marked graph. Out: `info(node).fragment` on every node that is an einsum, and
`info(node).dense_reason` on every other node that a rule reached.
"""

from torch import fx

from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import (
    module_type,
    operator_name,
    parameter_behind,
    tensor_value,
)
from sparsify.passes.lift import convolution, embedding_bag
from sparsify.passes.lift.experts import mixture as experts
from sparsify.passes.lift.lifter import PRODUCTS, Lifter
from sparsify.passes.region.fragment import DTYPES, HALVES, Fragment
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix, declared_sparse
from sparsify.report import Choice

__all__ = ["Fragment", "lift"]


def lift(draft: Draft) -> Draft:
    """The draft with a fragment on every node that can be part of an einsum program."""
    lifter = Lifter(draft.is_trainable)
    taken: set[fx.Node] = set()
    for node in list(draft.graph.nodes):
        if node in taken:
            continue
        embedding = embedding_bag.recognise(node)
        if embedding is not None and embedding.mark is not None:
            made = embedding_bag.bags_region(embedding, embedding.mark)
            settle(embedding.call if isinstance(made, str) else node, made)
            continue
        filters = convolution.mark_of(node)
        if filters is not None:
            found = convolution.convolution(draft, node, filters, taken)
            if isinstance(found, str):
                set_info(node, dense_reason=found)
            else:
                set_info(found.output, region=found)
                taken.update(found.covered)
            continue
        mixture = experts.recognise(node)
        gate = None if mixture is None else experts.mark_of(mixture)
        if mixture is not None and gate is not None and mixture.combine is not None:
            made = experts.experts_region(mixture, gate)
            settle(node if isinstance(made, str) else made.output, made)
            set_info(mixture.gate, dense_reason=None)  # it is computed as it was, and then read sparse
            continue
        fragment = lifter.fragment(node)
        if fragment is not None:
            set_info(node, fragment=fragment)
            note_weights(fragment)
        if fragment is None or not fragment.matrices:
            why = reason_to_stay_dense(node)
            if why:
                set_info(node, dense_reason=why)
    return draft


def settle(node: fx.Node, found: Region | str) -> None:
    """Notes the region that ends in a node, or why it stays dense."""
    if isinstance(found, str):
        set_info(node, dense_reason=found)
    else:
        set_info(node, region=found)


def note_weights(fragment: Fragment) -> None:
    """Says of weights that are read dense beside other sparse operands why they are."""
    for operand in fragment.operands.values() if fragment.matrices else ():
        weight = parameter_behind(operand) if isinstance(operand, fx.Node) else None
        mark = None if weight is None else info(weight).mark
        if weight is not None and isinstance(mark, Mark):
            why = Choice(
                "rows of it are read whole for the entries of the other matrix: to look for what both store is slower"
            )
            set_info(weight, dense_reason=why)


def reason_to_stay_dense(node: fx.Node) -> str:
    """Why a node that a rule reached is no einsum, "" when no rule reached it."""
    name, value = operator_name(node), tensor_value(node)
    if node.op not in ("call_function", "call_method") or value is None:
        return ""
    operand = next((arg for arg in node.all_input_nodes if declared_sparse(arg) is not None), None)
    matrix = declared_sparse(operand)
    if matrix is not None and matrix.scales is not None and sums_rows(node, operand, matrix):
        return f"{name} sums over the rows of {operand}, which have a scale each: int8 is for rows of outputs"
    if operand is not None and not is_transposition(node):
        if value.dtype in HALVES:
            return f"{value.dtype} is supported for products with weights that get no gradients"
        known = value.dtype in DTYPES
        return (
            f"{name} has no sparse form for {operand.name}"
            if known
            else f"{value.dtype} is not supported yet"
        )
    weight = next((arg for arg in node.all_input_nodes if is_larger_weight(arg)), None)
    if weight is not None:
        return f"{name} has no sparse form for {weight.name}, which has {weight.meta['val'].dim()} modes"
    computed = next((arg for arg in node.all_input_nodes if is_computed(arg)), None)
    if computed is not None and name in PRODUCTS:
        return f"{computed.name} becomes sparse at run time; only inputs and parameters are packed"
    mark = info(node).mark
    if isinstance(mark, Mark) and mark.role == "gate" and not mark.derived:
        return "it is no gate: nothing weights the results of experts with it and sums them"
    if isinstance(mark, Mark) and not mark.derived:
        kind = f" of {module_type(node)}" if module_type(node) else ""
        return f"{name}{kind} has no sparse form"
    return ""


def sums_rows(node: fx.Node, operand: fx.Node | None, matrix: Matrix) -> bool:
    """Whether a product sums over the rows of the weight that its operand is, or is the transpose of."""
    name = operator_name(node)
    if name not in PRODUCTS:
        return False
    is_left = operand in node.args and node.args.index(operand) == int(name == "addmm")
    return matrix.transposed if is_left or name == "linear" else not matrix.transposed


def is_computed(node: fx.Node) -> bool:
    """Whether the node's zeros follow from those of a marked input."""
    mark = info(node).mark
    return isinstance(mark, Mark) and mark.derived and not is_transposition(node)


def is_larger_weight(node: fx.Node) -> bool:
    """Whether a rule makes a parameter of three modes or more sparse."""
    mark, value = info(node).mark, tensor_value(node)
    return isinstance(mark, Mark) and node.op == "get_attr" and value is not None and value.dim() > 2


def is_transposition(node: fx.Node) -> bool:
    """Whether the node only turns its operand; the product behind it takes the operand itself."""
    return operator_name(node) in ("t", "transpose", "permute")
