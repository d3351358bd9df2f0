"""Regions to kernel calls: the graph with one call in place of every region's nodes.

In: a region with its program. Out: `%y = call_region(handle, %x, %edge_index, %n, %w, %b)`.

Operands that follow from a graph's structure alone (adjacency, normalisation, degrees, turned weights) are
cut out of the graph into a `Structure`, which remembers them; what remains of the graph computes nothing
twice.
"""

import operator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.prepare import prepare_all
from sparsify.compiler.reference import substitute
from sparsify.compiler.schedule.hubs import said
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import InvalidTensorError, SparsifyError
from sparsify.passes import canonicalize, new_node
from sparsify.passes.backends import SPOKEN, by_library
from sparsify.passes.base import Draft
from sparsify.passes.bind import Binding, Plan, as_methods, bind, bind_matrix, cut_out, extract
from sparsify.passes.call_region import call_region, call_results
from sparsify.passes.confront import confront, field_of
from sparsify.passes.estimate import UNKNOWN_ROWS, estimated_us, example_sizes, expected_sizes, fixed_extents
from sparsify.passes.left_dense import note_listed
from sparsify.passes.operand import Operand, SizeAt
from sparsify.passes.operators import known_size, operator_name, scope, tensor_value
from sparsify.passes.origin import origin
from sparsify.passes.printer import extent_names
from sparsify.passes.region import Region
from sparsify.passes.region_call import RegionCall
from sparsify.passes.schedules import tune_schedules
from sparsify.report import RegionEntry

aten: Final = torch.ops.aten


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


def emit(draft: Draft) -> Draft:
    """The draft with a call in place of each region; their kernels are built side by side.

    A region without a kernel stays dense, and the report says why.
    """
    plans: dict[frozenset[fx.Node], Plan] = {}
    for region in draft.regions:  # all structures are known before an operand may join one
        for matrix in region.matrices if not region.backend else ():
            bind_matrix(draft, matrix, region.names[matrix.name], plans)
    bound = [(region, bind(draft, region, plans)) for region in draft.regions]
    for plan in plans.values():
        cut_out(draft, plan)
    sites = [site_of(draft, region, bindings) for region, bindings in bound]
    own = [site for site in sites if isinstance(site, Site) and site.call.library is None]
    failed = dict(zip(map(id, own), prepare_all([(s.call.kernel, s.sizes) for s in own]), strict=True))
    replaced: dict[fx.Node, fx.Node] = {}
    calls: list[RegionCall] = []
    names = extent_names(draft.graph)
    for (region, _), site in zip(bound, sites, strict=True):
        error = failed.get(id(site)) if isinstance(site, Site) else site
        if isinstance(site, Site) and error is None:
            if site.call.kernel.failure is not None:
                substituted(draft, site)
            elif site.call.library is None:
                choose(draft, site)
            site.call.name = f"region_{len(calls) + 1}"
            calls.append(site.call)
            replace_nodes(draft, site, replaced, names)
            continue
        assert error is not None, "a region without a site has a reason"
        if draft.is_strict or isinstance(error, InvalidTensorError) or not isinstance(error, SparsifyError):
            raise error
        keep_dense(draft, region, error)
    draft.regions = calls
    for node in replaced.values():
        keep_layout(node)
    canonicalize.remove_unused(draft.graph)
    as_methods(draft.graph)
    return draft


def choose(draft: Draft, site: Site) -> None:
    """Times schedules of the kernels of a call, and what else computes it, both together in `tune_seconds`."""
    region, call, arguments, sizes = site.region, site.call, site.arguments, site.sizes
    region.notes += said(call.program, sizes)
    field = field_of(draft, region, call, sizes)
    seconds = draft.options.tune_seconds / (2 if field.near else 1)
    tune_schedules(draft, region, call, arguments, sizes, seconds)
    if field.rivals:
        region.notes.append(confront(draft, call, arguments, sizes, field, seconds))


def substituted(draft: Draft, site: Site) -> None:
    """Lists a region that torch's operators compute, as its kernel cannot be built."""
    failure = site.call.kernel.failure
    assert failure is not None, "its kernel cannot be built"
    substitute.is_new(failure, draft.options)
    warning = substitute.text_of(failure)
    site.region.notes.append(f"torch's operators compute, {failure.message.splitlines()[0]}")
    if not any(said.startswith(substitute.LOST) for said in draft.report.warnings):
        draft.report.warnings.append(warning)


def keep_dense(draft: Draft, region: Region, error: SparsifyError) -> None:
    """Lists the nodes of a region that has no kernel."""
    node = region.output
    reason = f"no kernel: {error}".splitlines()[0]
    draft.report.left_dense(node.name, operator_name(node), scope(node), reason)
    note_listed(region)
    warning = f"sparse regions stay dense, {reason}"
    if warning not in draft.report.warnings:
        draft.report.warnings.append(warning)


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
    assert region.program is not None, "fuse finishes programs"
    try:
        outputs = () if region.layout is not None else region.outputs
        shapes = tuple([output_shape(region, node, at) for node in outputs])
        dense = extract(draft, arguments, [*region.outputs])
        library = None
        if region.backend:
            library = by_library(extract(draft, arguments, [region.output]), region.backend)
        settings = (draft.options, draft.notices, draft.is_strict, library, region.layout)
        call = RegionCall(region.program, operands, shapes, dense, *settings)
        call.densely = frozenset(o.argument for o in operands if o.name in region.densely)
        if library is not None:
            return Site(region, call, arguments, {}, expected_sizes(draft, region))
        sizes = example_sizes(draft, region, call, arguments)
        call.plan_for(sizes, fixed_extents(region))
    except SparsifyError as error:
        return error
    once = {binding.name: binding.plan.leaves for binding in bindings if binding.plan is not None}
    return Site(region, call, arguments, once, sizes)


def replace_nodes(
    draft: Draft, site: Site, replaced: dict[fx.Node, fx.Node], extents: dict[str, str]
) -> None:
    """Puts the call of a region, whose kernel is ready, in the place of its nodes.

    `replaced` knows the calls of earlier regions, and this one afterwards; `extents` have names.
    """
    region, call, first = site.region, site.call, site.region.output
    call.origin = origin(draft.graph, region, site.once, replaced, extents)
    entry = describe(draft, region, call)
    call.notes = entry.notes
    if call.library is None:
        entry.kernel, entry.cache = call.kernel.key, call.kernel.cache
        entry.estimated_us = estimated_us(draft, region, site.sizes)
    arguments = [replaced.get(argument, argument) for argument in site.arguments]
    with draft.graph.inserting_before(first):
        target = call_results if region.results else call_region
        new = draft.graph.create_node("call_function", target, (call.handle, *arguments), name=call.name)
        made = [new]
        if region.results:
            found = enumerate(region.results)
            made = [draft.graph.call_function(operator.getitem, (new, number)) for number, _ in found]
            new.meta["val"] = tuple([node.meta["val"] for node in region.results])
            new.meta |= {key: first.meta[key] for key in ("nn_module_stack",) if key in first.meta}
    new.meta["region"] = call
    for node, value in zip(region.outputs, made, strict=True):
        value.meta |= {key: node.meta[key] for key in ("val", "nn_module_stack") if key in node.meta}
        node.replace_all_uses_with(value)
        replaced[node] = value
    draft.report.regions.append(entry)


def keep_layout(node: fx.Node) -> None:
    """`y = region(x) -> y = permute(contiguous(permute(region(x))))`, laid out as the graph had it.

    Only results of convolutions, which kernels write row by row, may have been laid out otherwise, with channels as
    neighbours. Views behind them rely on that; kernels of other convolutions read images as they come.
    """
    readers = [reader for reader in node.users if not is_convolution(reader)]
    order = layout_of(node)
    if not is_convolution(node) or not readers or order == sorted(order):
        return
    back = [order.index(mode) for mode in range(len(order))]
    with node.graph.inserting_after(node):
        turned = new_node.call(aten.permute.default, node, order)
    with node.graph.inserting_after(turned):
        laid = new_node.call(aten.contiguous.default, turned)
    with node.graph.inserting_after(laid):
        found = new_node.call(aten.permute.default, laid, back)
    for reader in readers:
        reader.replace_input_with(node, found)


def is_convolution(node: fx.Node) -> bool:
    """Whether a node calls the region of a convolution."""
    return "region" in node.meta and node.meta["region"].layout is not None


def layout_of(node: fx.Node) -> list[int]:
    """The modes of a tensor, that whose neighbours lie farthest apart first."""
    value = tensor_value(node)
    assert value is not None, "regions compute tensors"
    strides = [known_size(stride, UNKNOWN_ROWS) or 0 for stride in value.stride()]
    return sorted(range(value.dim()), key=lambda mode: -strides[mode])


def output_shape(region: Region, node: fx.Node, at: Any) -> tuple[int | SizeAt, ...]:
    """Per mode of a result its extent, or the argument that is its extent."""
    shape: list[int | SizeAt] = []
    value = tensor_value(node)
    assert value is not None, "regions compute tensors"
    for mode, extent in enumerate(value.shape):
        if str(extent).isdigit():
            shape.append(int(str(extent)))
            continue
        found = (
            canonicalize.input_of_extent(node.graph, extent)
            or operand_of_extent(region, extent)
            or operand_of_index(region, region.outputs.index(node), mode)
        )
        size = (
            canonicalize.size_node(*found, extent, region.output)
            if found
            else canonicalize.shifted_size(extent, region.output)
        )
        if size is None:
            raise SparsifyError(f"the extent {extent} of {node.name} is no extent of an input")
        shape.append(SizeAt(at(size)))
    return tuple(shape)


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
    assert region.program is not None, "fuse finishes programs"
    extents = region.program.declaration(region.program.outputs[number]).extents
    for name, operand in region.operands.items():
        value = tensor_value(operand) if isinstance(operand, fx.Node) else None
        declared = region.program.declaration(region.names[name]).extents if value is not None else ()
        if value is not None and value.ndim == len(declared) and extents[mode] in declared:
            return operand, declared.index(extents[mode])  # type: ignore[return-value]
    return None


def describe(draft: Draft, region: Region, call: RegionCall) -> RegionEntry:
    """The region's line in the report."""
    assert region.program is not None, "fuse finishes programs"
    how = f"packed by {SPOKEN[region.backend]}" if region.backend else ""
    formats = {d.name: how or str(d.format) for d in region.program.declarations if not d.format.is_dense}
    einsum = "; ".join(str(statement) for statement in region.program.statements)
    scopes = sorted({scope(node) for node in region.covered} - {""})
    return RegionEntry(
        call.name, [node.name for node in region.covered], scopes, einsum, formats, notes=region.notes
    )
