"""Expected time of a region for the example inputs, before its kernel exists.

In: the region of `Y[i,k] = sum(j, A[i,j] * X[j,k])` in a graph captured for 2708 nodes. Out: about 400 us.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.plan.products.contract import contract
from sparsify.compiler.schedule.cost.statement import estimate_us
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.operators import known_size, operator_name, sources, tensor_value
from sparsify.passes.operands.alignment import Aligned
from sparsify.passes.region.region import Region, finish
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, SparseOperand
from sparsify.storage.tensor import SparseTensor

# Assumed rows of an input of unknown size.
UNKNOWN_ROWS: Final = 128


def estimated_us(draft: Draft, region: Region, sizes: Sizes | None = None) -> float | None:
    """The microseconds of one call; None for unknown sizes of the example."""
    if region.program is None:
        finish(region)
    assert region.program is not None, "finish writes the program"
    all_sizes = sizes or expected_sizes(draft, region)
    if any(index not in all_sizes.extents for d in region.program.declarations for index in d.extents):
        return None
    if any(region.names[matrix.name] not in all_sizes.stored for matrix in region.matrices):
        return None
    split = contract(region.program, all_sizes)
    machine = calibrate.cached_machine(draft.options)
    return estimate_us(split.program, all_sizes.extents, {**all_sizes.stored, **split.stored}, machine)


def expected_sizes(draft: Draft, region: Region) -> Sizes:
    """Extents and stored entries of the operands, as far as known from the example."""
    assert region.program is not None, "finish writes the program"
    if region.layout is not None:
        return layout_sizes(draft, region)
    extents: dict[str, int] = {}
    stored: dict[str, int] = {}
    for index, extent in index_extents(region):
        size = known_size(extent)
        if size is not None:
            extents[index] = size
    for name, operand in region.operands.items():
        count = stored_entries(draft, operand) if isinstance(operand, Matrix | Bags) else None
        if count is not None:
            stored[region.names[name]] = count
    return Sizes({**extents, **dict(region.program.extents)}, stored)


def fixed_extents(region: Region) -> Sizes:
    """The extents of the operands that are equal in every call of the graph."""
    assert region.program is not None, "finish writes the program"
    if region.layout is not None:
        return Sizes(dict(region.program.extents))
    return Sizes({index: extent for index, extent in index_extents(region) if type(extent) is int})


def index_extents(region: Region) -> Iterator[tuple[str, Any]]:
    """The index variables of a region's operands, with extents as numbers, symbols or nodes."""
    assert region.program is not None, "finish writes the program"
    for name, operand in region.operands.items():
        declared = region.program.declaration(region.names[name])
        yield from zip(declared.extents, extents_of(operand), strict=False)


def layout_sizes(draft: Draft, region: Region) -> Sizes:
    """The sizes of a convolution's operands."""
    assert region.layout is not None and region.program is not None, (
        "other regions have operands of their own"
    )
    image, weight = (region.read[at] for at in (region.layout.places.image, region.layout.places.weight))
    dense_weight, images = draft.known_tensor(weight), tensor_value(image)
    assert dense_weight is not None and images is not None, "convolutions are of parameters and tensors"
    count = known_size(images.shape[0], UNKNOWN_ROWS) or UNKNOWN_ROWS
    return region.layout.sizes(count, dense_weight)


def extents_of(operand: fx.Node | SparseOperand) -> tuple[Any, ...]:
    """The extents of an operand, as numbers, symbols or nodes."""
    if isinstance(operand, PatternOperand):
        return operand.shape
    if isinstance(operand, Bags) or (isinstance(operand, Matrix) and operand.extents is not None):
        assert operand.extents is not None, "bags have extents"
        return operand.extents
    dense = operand.dense if isinstance(operand, Matrix) else operand
    value = tensor_value(dense)
    shape = tuple(value.shape) if value is not None else ()
    return shape[::-1] if isinstance(operand, Matrix) and operand.transposed else shape


def stored_entries(draft: Draft, matrix: Matrix | Bags) -> int | None:
    """The number of entries the example has in a sparse operand."""
    if isinstance(matrix, Bags):
        return known_size(matrix.extents[1])
    if matrix.dense is not None:
        tensor = draft.known_tensor(matrix.dense)
        return None if tensor is None else int(torch.count_nonzero(tensor))
    value = tensor_value(matrix.rows)
    assert matrix.rows is not None, "a matrix is dense or has rows"
    if value is None:
        return None
    edges = [known_size(extent) or 0 for leaf in sources([matrix.rows]) for extent in extents_of(leaf)]
    return known_size(value.shape[0], max(edges, default=0))


def example_sizes(draft: Draft, region: Region, call: RegionCall, arguments: Sequence[fx.Node]) -> Sizes:
    """The kernel's operand sizes in the example, with patterns if available."""
    values = [example_value(draft, node) for node in arguments]
    expected = expected_sizes(draft, region)
    if region.layout is not None:
        return expected
    operands: list[Any] = []
    for operand in call.operands:
        leaves = tuple(values[at] for at in operand.leaves)
        result: Any = None
        if operand.structure is not None and all(leaf is not None for leaf in leaves):
            result = operand.structure(leaves)[operand.result]
        if isinstance(result, Aligned):
            result = SparseTensor(result.pattern, torch.zeros(result.pattern.nnz))
        operands.append(result)
    measured = sizes_of(call.program, operands)
    return Sizes(
        {**expected.extents, **measured.extents}, {**expected.stored, **measured.stored}, measured.patterns
    )


def example_value(draft: Draft, node: fx.Node) -> Any:
    """A tensor or a size of the example, None for a value computed only at run time."""
    if operator_name(node) in ("sym_size", "size"):
        return known_size(node)
    return draft.known_tensor(node)


def example(draft: Draft, node: fx.Node) -> Any:
    """A tensor similar to the example's value of a node; a size as a number."""
    tensor = draft.known_tensor(node)
    if tensor is not None:
        return tensor.detach()
    value = tensor_value(node)
    if value is None:
        return known_size(node, UNKNOWN_ROWS) or UNKNOWN_ROWS
    shape = [known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS for extent in value.shape]
    random = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return random.to(value.dtype)
