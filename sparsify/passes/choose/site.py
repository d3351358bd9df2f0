"""A region with its replacement call, also before the replacement is decided: for timing.

In: a region and the bindings of its operands. Out: `Site(region, call, arguments, once, sizes)`; `trial(draft, region)`
is a call without arguments that behaves as the emitted call on the example's inputs.
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
from sparsify.passes.graph.operators import ancestors, operator_name, tensor_value
from sparsify.passes.program.model import size_of
from sparsify.passes.region.region import Region
from sparsify.report import Report


@dataclass(frozen=True)
class Site:
    """A region and its replacement call.

    Attributes:
        arguments: argument nodes of the call, from the graph before any replacement.
        once: source nodes of memoized operands, by name.
        sizes: operand sizes of the kernel in the example.
    """

    region: Region
    call: RegionCall
    arguments: list[fx.Node]
    once: dict[str, list[fx.Node]]
    sizes: Sizes


def site_of(draft: Draft, region: Region, bindings: list[Binding]) -> Site | SparsifyError:
    """The call that computes a region, with its kernel not built yet; or the reason for none."""
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
        call.dense_form = region.dense_form
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
    """The inputs and parameters read by a region's nodes in addition to its arguments, as for shapes alone."""
    behind = operators.ancestors(region.outputs, lambda node: node not in arguments)
    return [node for node in behind if node.op in ("placeholder", "get_attr") and node not in arguments]


def output_shape(region: Region, node: fx.Node, at: Any) -> tuple[int | SizeAt, ...]:
    """The extent of each mode of a result, or the argument with the extent."""
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
            operand_mode = operand or operand_of_index(region, region.outputs.index(node), mode)
            size = (
                canonicalize.size_node(*operand_mode, extent, region.output)
                if operand_mode
                else canonicalize.shifted_size(extent, region.output)
                or canonicalize.number_of_expression(node.graph, size_of(extent))
            )
        if size is None:
            raise SparsifyError(f"the extent {extent} of {node.name} is no extent of an input")
        shape.append(SizeAt(at(size)))
    return tuple(shape)


def extent_before(region: Region, extent: Any) -> fx.Node | None:
    """The node of an extent that exists before the region: an input's size or a number; None otherwise."""
    input_mode = canonicalize.input_of_extent(region.output.graph, extent)
    if input_mode is not None:
        return canonicalize.size_node(*input_mode, extent, region.output)
    number = canonicalize.number_of_expression(region.output.graph, size_of(extent))
    if number is None or operator_name(number) in ("sym_size", "size"):
        return None
    return number if number < region.output else None


def operand_of_extent(region: Region, extent: Any) -> tuple[fx.Node, int] | None:
    """An operand of a region and its mode with a given extent, for symbolic extents such as products."""
    for source in region.inputs:
        value = tensor_value(source)
        for mode, other in enumerate(value.shape if value is not None else ()):
            if str(other) == str(extent):
                return source, mode
    return None


def operand_of_index(region: Region, number: int, mode: int) -> tuple[fx.Node, int] | None:
    """An operand and its mode over the same index variable as a mode of a result.

    Data-dependent extents, as of `x[mask]`, may be equal under different symbols.
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
        call: function that runs the call.
        kernel: kernel of the call, `None` if nodes or a library compute it.
        sizes: sizes of the kernel's operands.
    """

    call: Callable[[], Any]
    kernel: Kernel | None = None
    sizes: Sizes | None = None


def scratch_site(draft: Draft, region: Region) -> Site:
    """The call of a region with its argument nodes; the kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    scratch = replace(draft, report=Report())
    (bindings,) = bind_all(scratch, [region])
    site = site_of(scratch, region, bindings)
    if isinstance(site, SparsifyError):
        raise site
    return site


def trial(draft: Draft, region: Region) -> Trial:
    """The call of a region with the example's inputs; the kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    site = scratch_site(draft, region)
    call = partial(site.call, *(example(draft, node) for node in site.arguments))
    if site.call.library is not None:
        return Trial(call)
    return Trial(call, site.call.kernel, site.sizes)


def dense_trial(draft: Draft, region: Region) -> Trial:
    """The call of the unchanged nodes of a region."""
    read = [*region.read, *inputs_with_sizes(region)]
    module = extract(draft.graph, read, [region.output])
    return Trial(partial(module.forward, *(example(draft, node) for node in read)))


def inputs_with_sizes(region: Region) -> list[fx.Node]:
    """The inputs of the graph, beside those that a region reads, with extents that views of the region take."""
    inside = ancestors([region.output], lambda node: node not in region.read)
    return [node for node in inside if node.op == "placeholder" and node not in region.read]


def compiled(trials: Sequence[Trial]) -> None:
    """Compiles the kernels of trials, side by side.

    Raises:
        SparsifyError: one cannot be compiled.
    """
    build_all([(t.kernel, t.sizes) for t in trials if t.kernel is not None and t.sizes is not None])
