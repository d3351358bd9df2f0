"""Dense readers of sparse tensors in the final graph: listed, warned of, and refused if strict.

In: a graph with `%y = conv_transpose1d(%x, %w)` and a rule for `w`, after all other passes.
Out: the same; `report.dense` has `conv_transpose1d` with its scope and the reason, `report.warnings` one line for all.

Choices are only listed: a format that would be slower or larger, a limit of the rule. The deciding passes call
`choose_dense`. Tensors without readers are listed and warned of, but not refused by `strict`: no dense computation
remains.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch import fx

from sparsify.errors import UnsupportedOperatorError
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import call_of, info, set_info
from sparsify.passes.graph.operators import operator_name, scope, tensor_value
from sparsify.passes.operands.alignment import BagsOutput
from sparsify.passes.operands.cached_operands import MatrixOutput, Structure
from sparsify.passes.region.region import Region
from sparsify.passes.rules import prunable
from sparsify.passes.rules.scatters import SCATTERS
from sparsify.report import Choice, DenseEntry
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

ATTENTION: Final = "scaled_dot_product_attention"
SIZES: Final = frozenset(["sym_size", "size", "sym_numel", "numel", "dim", "sym_stride", "stride"])
PARTS: Final = frozenset(["getitem", "slice", "select", "split", "chunk", "narrow", "unbind"])
FOLLOWED: Final = operators.VIEWS | operators.COPIES | operators.FILL_PRESERVING
# Nodes that are external tensors, with their names in the report.
TENSORS: Final = {"placeholder": "input", "get_attr": "param"}
# Entry kind of expert modules, listed by `drafted`; other entries are nodes, some of them memoized outside of the
# graph.
EXPERTS: Final = "experts"
# Number of readers whose texts are part of the warning.
SHOWN: Final = 3


def left_dense(draft: Draft) -> Draft:
    """The draft, with every reader of a sparse tensor outside of kernels listed in its report.

    Raises:
        UnsupportedOperatorError: with `strict`, a reader is dense without a choice.
    """
    for node in list(draft.graph.nodes):
        mark = info(node).mark
        if not isinstance(mark, Mark) or mark.derived or is_dense(mark):
            continue
        if node.op in TENSORS:
            list_readers(draft, node)
        elif mark.role != "gate" and not is_call(node) and not info(node).is_listed_dense:
            name = operator_name(node)
            reason = f"{name} has no sparse form"
            if name in SCATTERS:  # part of a kernel already
                reason = Choice(f"what {name} gives is read elsewhere, too")
            draft.report.left_dense(node.name, name, scope(node), reason)
    report_left(draft)
    return draft


def report_left(draft: Draft) -> None:
    """Warns of all dense entries of the report, except choices and entries covered by a warning.

    Raises:
        UnsupportedOperatorError: with `strict`, an entry is an operator.
    """
    names = {node.name for node in draft.graph.nodes}
    is_there = [e.node in names or e.op in (*TENSORS.values(), EXPERTS) for e in draft.report.dense]
    entries = [e for e, there in zip(draft.report.dense, is_there, strict=True) if there and not e.chosen]
    refused = [entry for entry in entries if entry.op not in TENSORS.values()]
    if refused and draft.is_strict:
        raise UnsupportedOperatorError(shown(refused), "leave out the rule for it, or apply without strict")
    warned = [e for e in entries if not any(e.reason in text for text in draft.report.warnings)]
    if warned:
        draft.report.warnings.append(f"stays dense: {shown(warned)}")


def choose_dense(draft: Draft, region: Region, node: fx.Node, reason: str) -> None:
    """Lists `node` for all nodes of a region chosen to stay dense, as dense is faster or smaller."""
    draft.report.left_dense(node.name, operator_name(node), scope(node), Choice(reason))
    note_listed(region)


def note_listed(region: Region) -> None:
    """Marks the nodes of a region as listed in the report as dense."""
    for node in region.covered:
        set_info(node, is_listed_dense=True)


def shown(entries: Iterable[DenseEntry]) -> str:
    """The first reasons, each with its operator, and the number of further ones."""
    reasons = list(dict.fromkeys(e.reason if e.op in e.reason else f"{e.op}: {e.reason}" for e in entries))
    rest = len(reasons) - SHOWN
    more = f"; and {rest} more, which `report.dense` lists" if rest > 0 else ""
    return "; ".join(reasons[:SHOWN]) + more


def is_dense(mark: Mark) -> bool:
    """Whether a rule asks for a dense format itself."""
    return mark.format != "auto" and Format(mark.format).is_dense


def title(root: fx.Node) -> str:
    """The name of an input or a parameter for people, `input:x`."""
    return f"{TENSORS[root.op]}:{info(root).input_name or root.target}"


def list_readers(draft: Draft, root: fx.Node) -> None:
    """Lists the dense readers of an input or a parameter; the root itself if nothing reads its entries."""
    readers = [(operand, reader) for operand, reader in readers_of(root) if not is_recurrent(reader)]
    if not readers and any(name == root.target for name, _ in draft.stored):
        return  # read by graphs of other calls
    if not readers and not any(is_recurrent(reader) for _, reader in readers_of(root)):
        what = "only its shape is read" if root.users else "nothing reads it"
        draft.report.left_dense(root.name, TENSORS[root.op], scope(root), f"{title(root)}: {what}")
    sparsely = {reader for operand, reader in readers if is_call(reader) and is_read_sparse(reader, operand)}
    sparsely |= {reader for operand, reader in readers if is_sparse_product(reader, operand)}
    if is_index(root) and sparsely:
        return  # edges and bags: other readers look up rows
    is_listed = any(entry.node == root.name for entry in draft.report.dense)
    for operand, reader in readers:
        if reader in sparsely or info(reader).is_listed_dense or (is_listed and is_call(reader)):
            continue
        name = "output" if reader.op == "output" else "region" if is_call(reader) else operator_name(reader)
        reason = reason_of(reader, operand, root)
        reason = Choice(reason) if is_vector(draft, root) else reason
        draft.report.left_dense(reader.name, name, scope(reader), reason)


def is_sparse_product(reader: fx.Node, operand: fx.Node) -> bool:
    """Whether a reader is the compute kernel of `SparseTensor` operators, captured by export."""
    return reader.target is torch.ops.sparsify.compute.default and isinstance(
        tensor_value(operand), SparseTensor
    )


def is_recurrent(node: fx.Node) -> bool:
    """Whether a node is a recurrent layer, listed with a reason by the step-by-step capture."""
    return operator_name(node) in operators.RECURRENT


def is_vector(draft: Draft, root: fx.Node) -> bool:
    """Whether a tensor is a parameter of one mode selected by a rule through a glob, not by its name."""
    value = tensor_value(root)
    is_small = root.op == "get_attr" and value is not None and value.dim() < prunable.MATRIX
    return is_small and not is_named(draft, root)


def is_named(draft: Draft, root: fx.Node) -> bool:
    """Whether a tensor is an input, or a parameter named explicitly by its rule."""
    labels = {rule.id or f"rule {position + 1}": rule for position, rule in enumerate(draft.recipe.rules)}
    mark = info(root).mark
    return root.op != "get_attr" or mark is None or prunable.is_named(labels[mark.rule], str(root.target))


def is_index(root: fx.Node) -> bool:
    """Whether a tensor has an integer or bool dtype."""
    value = tensor_value(root)
    return value is not None and not value.is_floating_point() and not value.is_complex()


def readers_of(root: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The readers of a tensor or its views, each with the operand read."""
    waiting, visited = [root], {root}
    while waiting:
        operand = waiting.pop()
        for reader in operand.users:
            is_followed = operator_name(reader) in FOLLOWED and info(reader).dense_reason is None
            if is_followed and reader not in visited:
                visited.add(reader)
                waiting.append(reader)
            elif not is_followed and operator_name(reader) not in SIZES:
                yield operand, reader


def is_read_sparse(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a region call reads the entries of an operand as a sparse tensor's, if at all."""
    call: RegionCall = call_of(node)
    if call.library is not None:
        return True  # dense by choice, with a note on the region
    places = {position for position, argument in enumerate(node.args[1:]) if argument is operand}
    reading = [one for one in call.operands if places & {one.argument, *one.leaves}]
    is_sparse = any(one.structure is not None and is_matrix(one.structure, one.result) for one in reading)
    return is_sparse or not reading


def is_matrix(structure: Structure, result: int) -> bool:
    """Whether a result of a structure is a sparse tensor, not a memoized dense one."""
    return isinstance(structure.outputs[result], MatrixOutput | BagsOutput)


def reason_of(reader: fx.Node, operand: fx.Node, root: fx.Node) -> str:
    """The reason why a reader of a tensor, or of a view, stays dense."""
    name, what = operator_name(reader), title(root)
    if reader.op == "output":
        return f"{what} is returned, as a dense tensor"
    if is_call(reader):
        return Choice(
            f"rows of {what} are read whole for the entries of other operands: to look for what both store is slower"
        )
    if name == ATTENTION:
        return f"{name} reads {what} dense: a pattern is given to attention by a rule with `mask`"
    if is_index(root):
        dtype = root.meta["val"].dtype
        return (
            f"{name} reads {what} dense: kernels read sparse tensors of floating-point numbers, not {dtype}"
        )
    if operator_name(operand) in PARTS:
        return f"{name} reads a part of {what} dense: whole tensors alone are packed"
    return f"{name} reads {what} dense: it has no sparse form"
