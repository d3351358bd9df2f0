"""Pruned weights trained as sparse parameters, with one gradient and optimizer state per stored entry.

In: a model in training whose graph reads `lin.weight` [3072, 768] through kernels alone; nine in ten entries are zeros.
Out: `lin.weight` is an `nn.Parameter` of a `SparseTensor` with 235,930 entries. Torch's operators in a graph captured
later read `as_dense(lin.weight)`. Parameters are exchanged during `apply`, before any caller holds them; afterwards
each keeps its identity.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.graph.node_info import call_of, info
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.cached_operands import MatrixOutput
from sparsify.passes.operands.content_memo import Memo, needs_gradient
from sparsify.storage.subclass import trained_masks
from sparsify.storage.tensor import SparseTensor

_dense: Final[Memo[Tensor]] = Memo(are_weights=True)


def sparse_parameters(model: nn.Module, variants: Iterable[Variant]) -> dict[str, MatrixOutput]:
    """The trained parameters read sparse by the regions of all variants, in one layout, by name."""
    parameters = dict(model.named_parameters())
    specs_of_name: dict[str, list[MatrixOutput | None]] = {}
    for variant in variants:
        for node in variant.captured.graph.find_nodes(op="get_attr"):
            parameter = parameters.get(str(node.target))
            if parameter is not None and parameter.requires_grad:
                specs_of_name.setdefault(str(node.target), []).extend(specs_of(node))
    return {
        name: specs[0] for name, specs in specs_of_name.items() if specs[0] is not None and len({*specs}) == 1
    }


def specs_of(weight: fx.Node) -> Iterator[MatrixOutput | None]:
    """The packed forms in which readers take a parameter, `None` for dense or masked readers."""
    if not weight.users or info(weight).is_under_mask:
        yield None
    for user in weight.users:
        if not is_call(user):
            yield None
            continue
        region: RegionCall = call_of(user)
        for position, argument in enumerate(user.args[1:]):
            if argument is weight:
                yield from argument_specs(region, position)


def argument_specs(region: RegionCall, position: int) -> Iterator[MatrixOutput | None]:
    """The packed forms in which a region takes its argument at a position."""
    is_dense = region.layout is not None or region.library is not None or position in region.densely
    for operand in region.operands:
        if operand.argument == position and operand.structure is None:
            yield None
        elif position in operand.leaves and operand.structure is not None:
            yield None if is_dense else operand.structure.trained


def as_dense(weight: Tensor) -> Tensor:
    """A sparse parameter made dense for dense operators, differentiable; a dense one is unchanged."""
    if type(weight) is not SparseTensor:
        return weight
    if torch.is_grad_enabled() and needs_gradient(weight):
        return weight.to_dense()
    return _dense.get((weight,), lambda: weight.detach().to_dense())


def read_densely(graph: fx.Graph, names: Collection[str]) -> None:
    """Inserts `as_dense(w)` before torch's operators, and dense regions, that read named parameters."""
    for weight in [node for node in graph.find_nodes(op="get_attr") if node.target in names]:
        readers = [
            user for user in weight.users if user.target is not as_dense and not takes_sparse(user, weight)
        ]
        if readers:
            with graph.inserting_after(weight):
                dense = graph.call_function(as_dense, (weight,))
            dense.meta["val"] = weight.meta["val"]
            for reader in readers:
                reader.replace_input_with(weight, dense)


def takes_sparse(user: fx.Node, weight: fx.Node) -> bool:
    """Whether a node takes a parameter as a sparse tensor: a region that packs the parameter."""
    if not is_call(user):
        return False
    region: RegionCall = call_of(user)
    places = [position for position, argument in enumerate(user.args[1:]) if argument is weight]
    return all(position in region.weights for position in places)


def exchanged(model: nn.Module, specs: Mapping[str, MatrixOutput]) -> dict[str, tuple[Tensor, nn.Parameter]]:
    """Each parameter and its sparse replacement, with the trained entries, by name."""
    replacements: dict[str, tuple[Tensor, nn.Parameter]] = {}
    for name, spec in specs.items():
        dense = model.get_parameter(name)
        sparse: Any = nn.Parameter(
            spec.packed(dense.detach(), mask=trained_masks.entries(dense)), requires_grad=True
        )
        replacements[name] = dense, sparse
    return replacements
