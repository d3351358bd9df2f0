"""A region and the call that will take its place, and the same before it is decided that it will: for timing.

In: a region and the bindings of its operands. Out: `Site(region, call, arguments, once, sizes)`; `trial(draft, region)`
is a call without arguments that does what the emitted call would do with the example's inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import fx

from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.prepare import build_all
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.bind import Binding, bind_all, extract
from sparsify.passes.call.region_call import Operand, RegionCall, SizeAt
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import example, example_sizes, expected_sizes, fixed_extents
from sparsify.passes.choose.linear_library import by_library
from sparsify.passes.graph import canonicalize, operators
from sparsify.passes.graph.operators import operator_name, tensor_value
from sparsify.passes.program.model import size_of
from sparsify.passes.region.region import Region
from sparsify.report import Report


@dataclass(frozen=True)
class Site:
    """A region and the call that will take its place.

    Attributes:
        arguments: of the call, as the graph was before any region was replaced.
        once: the nodes from which operands are computed once, by name.
        sizes: that the kernel meets in the example.
    """

    region: Region
    call: RegionCall
    arguments: list[fx.Node]
    once: dict[str, list[fx.Node]]
    sizes: Sizes


def site_of(draft: Draft, region: Region, bindings: list[Binding]) -> Site | SparsifyError:
    """The call that computes a region, its kernel not built yet; or why there is none."""
    arguments: list[fx.Node] = []

    def at(node: fx.Node) -> int:
        if node not in arguments:
            arguments.append(node)
        return arguments.index(node)

    operands = []
    for binding in bindings:
        argument = at(binding.node) if binding.node is not None else -1
        if binding.plan is None:
            operands.append(Operand(binding.name, argument))
            continue
        leaves = tuple(at(leaf) for leaf in binding.plan.leaves)
        assert binding.plan.structure is not None, "structures are cut out before calls are made"
        structure, result = binding.plan.structure, binding.result
        operands.append(Operand(binding.name, argument, structure, leaves, result, binding.is_full))
    assert region.program is not None, "regions have programs"
    try:
        outputs = () if region.layout is not None else region.outputs
        shapes = tuple([output_shape(region, node, at) for node in outputs])
        for leaf in read_besides(region, arguments):
            at(leaf)
        dense = extract(draft.graph, arguments, [*region.outputs])
        library = None
        if region.backend:
            library = by_library(extract(draft.graph, arguments, [region.output]), region.backend)
        settings = (draft.options, draft.notices, draft.is_strict, library, region.layout)
        call = RegionCall(region.program, operands, shapes, dense, *settings)
        call.is_general = region.layout is not None or (region.equations is not None and not region.is_layer)
        call.densely = frozenset(o.argument for o in operands if o.name in region.densely)
        if library is not None:
            return Site(region, call, arguments, {}, expected_sizes(draft, region))
        sizes = example_sizes(draft, region, call, arguments)
        call.plan_for(sizes, fixed_extents(region))
    except SparsifyError as error:
        return error
    once = {binding.name: binding.plan.leaves for binding in bindings if binding.plan is not None}
    return Site(region, call, arguments, once, sizes)


def read_besides(region: Region, arguments: list[fx.Node]) -> list[fx.Node]:
    """The inputs and parameters that the nodes of a region read besides its arguments, as for shapes alone."""
    behind = operators.ancestors(region.outputs, lambda node: node not in arguments)
    return [node for node in behind if node.op in ("placeholder", "get_attr") and node not in arguments]


def output_shape(region: Region, node: fx.Node, at: Any) -> tuple[int | SizeAt, ...]:
    """Per mode of a result its extent, or the argument that is its extent."""
    shape: list[int | SizeAt] = []
    value = tensor_value(node)
    assert value is not None, "regions compute tensors"
    for mode, extent in enumerate(value.shape):
        if str(extent).isdigit():
            shape.append(int(str(extent)))
            continue
        size = extent_before(region, extent)
        if size is None:
            operand = operand_of_extent(region, extent)
            found = operand or operand_of_index(region, region.outputs.index(node), mode)
            size = (
                canonicalize.size_node(*found, extent, region.output)
                if found
                else canonicalize.shifted_size(extent, region.output)
                or canonicalize.number_of_expression(node.graph, size_of(extent))
            )
        if size is None:
            raise SparsifyError(f"the extent {extent} of {node.name} is no extent of an input")
        shape.append(SizeAt(at(size)))
    return tuple(shape)


def extent_before(region: Region, extent: Any) -> fx.Node | None:
    """The size of an input that is an extent, or a number that the graph has by then; no tensor is made for it."""
    found = canonicalize.input_of_extent(region.output.graph, extent)
    if found is not None:
        return canonicalize.size_node(*found, extent, region.output)
    number = canonicalize.number_of_expression(region.output.graph, size_of(extent))
    if number is None or operator_name(number) in ("sym_size", "size"):
        return None
    return number if number < region.output else None


def operand_of_extent(region: Region, extent: Any) -> tuple[fx.Node, int] | None:
    """An operand of a region and the mode of it that has this extent, as the rows of several modes have."""
    for source in region.inputs:
        value = tensor_value(source)
        for mode, other in enumerate(value.shape if value is not None else ()):
            if str(other) == str(extent):
                return source, mode
    return None


def operand_of_index(region: Region, number: int, mode: int) -> tuple[fx.Node, int] | None:
    """An operand and the mode of it that the index variable of a mode of the result of this number runs over, too.

    Extents that the data decides, as of `x[mask]`, may be equal under different symbols.
    """
    assert region.program is not None, "regions have programs"
    extents = region.program.declaration(region.program.outputs[number]).extents
    for name, operand in region.operands.items():
        value = tensor_value(operand) if isinstance(operand, fx.Node) else None
        declared = region.program.declaration(region.names[name]).extents if value is not None else ()
        if value is not None and value.ndim == len(declared) and extents[mode] in declared:
            return operand, declared.index(extents[mode])  # type: ignore[return-value]
    return None


@dataclass(frozen=True)
class Trial:
    """A call of a region with the example's inputs.

    Attributes:
        call: runs it.
        kernel: of its own, `None` where nodes or a library compute it.
        sizes: of the kernel's operands.
    """

    call: Callable[[], Any]
    kernel: Kernel | None = None
    sizes: Sizes | None = None


def scratch_site(draft: Draft, region: Region) -> Site:
    """The call of a region with the nodes of its arguments; its kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    scratch = replace(draft, report=Report())
    (bindings,) = bind_all(scratch, [region])
    found = site_of(scratch, region, bindings)
    if isinstance(found, SparsifyError):
        raise found
    return found


def trial(draft: Draft, region: Region) -> Trial:
    """The call of a region with the example's inputs; its kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    found = scratch_site(draft, region)
    call = partial(found.call, *(example(draft, node) for node in found.arguments))
    if found.call.library is not None:
        return Trial(call)
    return Trial(call, found.call.kernel, found.sizes)


def dense_trial(draft: Draft, region: Region) -> Trial:
    """The call of the nodes of a region as they are."""
    module = extract(draft.graph, region.read, [region.output])
    return Trial(partial(module.forward, *(example(draft, node) for node in region.read)))


def compiled(trials: Sequence[Trial]) -> None:
    """Compiles the kernels of trials, side by side.

    Raises:
        SparsifyError: one cannot be compiled.
    """
    build_all([(t.kernel, t.sizes) for t in trials if t.kernel is not None and t.sizes is not None])
