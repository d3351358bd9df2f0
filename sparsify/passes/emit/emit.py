"""Regions to kernel calls: the graph with one call in place of every region's nodes.

In: a region with its program. Out: `%y = call_region(handle, %x, %edge_index, %n, %w, %b)`.

Operands determined by a graph's structure alone (adjacency, normalisation, degrees, transposed weights) are cut out of
the graph into a `Structure`, which memoizes them; the remaining graph has no redundant computation. `check` verifies
the graph before use.
"""

import operator
from typing import Final

import torch
from torch import fx

from sparsify.compiler.kernel import substitute
from sparsify.compiler.kernel.prepare import prepare_all
from sparsify.compiler.schedule.templates.heavy_rows import said
from sparsify.errors import DeviceError, InvalidTensorError, SparsifyError
from sparsify.passes.call.bind import as_methods, bind_all
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import call_region, call_results, is_call
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.adjacency import alternatives_of, tune_alternatives
from sparsify.passes.choose.estimate import (
    UNKNOWN_ROWS,
    estimated_us,
)
from sparsify.passes.choose.left_dense import note_listed
from sparsify.passes.choose.linear_library import LIBRARIES
from sparsify.passes.choose.row_ranges import tune_rows
from sparsify.passes.choose.schedules import tune_schedules
from sparsify.passes.choose.site import Site, site_of
from sparsify.passes.graph import canonicalize, insert
from sparsify.passes.graph.node_info import call_of, info, set_info
from sparsify.passes.graph.operators import VIEWS, known_size, operator_name, scope, tensor_value
from sparsify.passes.region.printer import extent_names, origin
from sparsify.passes.region.region import Region
from sparsify.report import RegionEntry

aten: Final = torch.ops.aten
MODEL_REMEDY: Final = "model.cpu(), and inputs on the CPU, to be fast"
# Usual number of timings until a region's number of rows is known.
ROW_COUNTS: Final = 4
# Maximum number of regions named in a warning.
SHOWN: Final = 3


def emit(draft: Draft) -> Draft:
    """The draft with a call in place of each region; kernels are built in parallel.

    A region without a kernel stays dense, with the reason in the report.
    """
    bound = zip(draft.regions, bind_all(draft, draft.regions), strict=True)
    sites = [site_of(draft, region, bindings) for region, bindings in bound]
    built = [site for site in sites if isinstance(site, Site) and has_kernel(site)]
    failed = dict(zip(map(id, built), prepare_all([(s.call.kernel, s.sizes) for s in built]), strict=True))
    replaced: dict[fx.Node, fx.Node] = {}
    calls: list[RegionCall] = []
    substituted: dict[str, tuple[SparsifyError, list[Site]]] = {}
    names = extent_names(draft.graph)
    for region, site in zip(draft.regions, sites, strict=True):
        error = failed.get(id(site)) if isinstance(site, Site) else site
        if isinstance(site, Site) and error is None:
            site.call.name = f"region_{len(calls) + 1}"
            if (failure := failure_of(site)) is not None:
                if draft.is_strict:
                    raise failure
                substituted.setdefault(str(failure), (failure, []))[1].append(site)
            elif site.call.library is None:
                choose(draft, site)
            calls.append(site.call)
            replace_nodes(draft, site, replaced, names)
            continue
        assert error is not None, "a region without a site has a reason"
        if draft.is_strict or isinstance(error, InvalidTensorError) or not isinstance(error, SparsifyError):
            raise error
        keep_dense(draft, region, error)
    for node in replaced.values():
        keep_layout(node)
    canonicalize.remove_unused(draft.graph)
    as_methods(draft.graph)
    keep_live(draft, calls)
    for failure, those in substituted.values():
        list_substituted(draft, failure, [site for site in those if site.call in draft.regions])
    return draft


def has_kernel(site: Site) -> bool:
    """Whether a kernel computes a region: no library does, and its tensors are in main memory."""
    return site.call.library is None and device_of(site.region) is None


def device_of(region: Region) -> torch.device | None:
    """The device of a region's results, None for the CPU."""
    value = tensor_value(region.output)
    return None if value is None or value.device.type == "cpu" else value.device


def failure_of(site: Site) -> SparsifyError | None:
    """The reason why torch's operators replace the kernel of a region; `None` for a working kernel."""
    device = device_of(site.region)
    if device is not None and site.call.library is None:
        return DeviceError(f"its tensors are on {device}, {substitute.KERNELS}", MODEL_REMEDY)
    return site.call.kernel.failure


def keep_live(draft: Draft, calls: list[RegionCall]) -> None:
    """Restricts the regions of the draft and of its report to regions with readers after emission."""
    live = [call_of(node) for node in draft.graph.nodes if is_call(node)]
    draft.regions = [call for call in calls if call in live]
    dead = {call.name for call in calls if call not in live}
    draft.report.regions = [entry for entry in draft.report.regions if entry.name not in dead]


def choose(draft: Draft, site: Site) -> None:
    """Times schedules of a call's kernels, and alternatives, within `tune_seconds` in total."""
    region, call, arguments, sizes = site.region, site.call, site.arguments, site.sizes
    region.notes += said(call.program, sizes)
    offered = alternatives_of(draft, region, call, sizes)
    seconds = draft.options.tune_seconds / (2 if offered.near else 1)
    tune_schedules(draft, region, call, arguments, sizes, seconds)
    if (note := tune_rows(draft, region, call, seconds / ROW_COUNTS)) is not None:
        region.notes.append(note)
    if offered.all:
        region.notes.append(tune_alternatives(draft, call, arguments, sizes, offered, seconds))


def list_substituted(draft: Draft, failure: SparsifyError, sites: list[Site]) -> None:
    """Lists regions computed by torch's operators for one reason, with one warning for all names."""
    if not sites:
        return
    substitute.is_new(failure, draft.options)
    reason = getattr(failure, "message", str(failure)).splitlines()[0]
    for site in sites:
        site.region.notes.append(f"torch's operators compute, {reason}")
    named = [f"{site.call.name} ({site.region.shown.name})" for site in sites]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    warning = substitute.text_of(failure, ", ".join(named[:SHOWN]) + more)
    if warning not in draft.report.warnings:
        draft.report.warnings.append(warning)


def keep_dense(draft: Draft, region: Region, error: SparsifyError) -> None:
    """Lists the nodes of a region without a kernel."""
    node = region.shown
    reason = f"no kernel: {error}".splitlines()[0]
    draft.report.left_dense(node.name, operator_name(node), scope(node), reason)
    note_listed(region)
    warning = f"sparse regions stay dense, {reason}"
    if warning not in draft.report.warnings:
        draft.report.warnings.append(warning)


def replace_nodes(
    draft: Draft, site: Site, replaced: dict[fx.Node, fx.Node], extents: dict[str, str]
) -> None:
    """Replaces the nodes of a region by the call of its compiled kernel.

    `replaced` maps nodes to the calls of earlier regions, and gets this one; `extents` has the names of extents.
    """
    region, call, first = site.region, site.call, site.region.output
    call.origin = origin(region, site.once, replaced, extents)
    entry = describe(draft, region, call)
    call.notes = entry.notes
    if call.library is None:
        is_built = has_kernel(site)
        entry.kernel, entry.cache = (call.kernel.key, call.kernel.cache) if is_built else ("torch", "none")
        entry.estimated_us = estimated_us(draft, region, site.sizes)
    arguments = [replaced.get(argument, argument) for argument in site.arguments]
    with draft.graph.inserting_before(first):
        target = call_results if region.results else call_region
        new = draft.graph.create_node("call_function", target, (call.handle, *arguments), name=call.name)
        values_of = [new]
        if region.results:
            numbered = enumerate(region.results)
            values_of = [draft.graph.call_function(operator.getitem, (new, number)) for number, _ in numbered]
            new.meta["val"] = tuple([node.meta["val"] for node in region.results])
            new.meta |= {key: first.meta[key] for key in ("nn_module_stack",) if key in first.meta}
    set_info(new, call=call)
    for node, value in zip(region.outputs, values_of, strict=True):
        value.meta |= {key: node.meta[key] for key in ("val", "nn_module_stack") if key in node.meta}
        node.replace_all_uses_with(value)
        replaced[node] = value
    insert.move_behind_inputs(new)
    draft.report.regions.append(entry)


def keep_layout(node: fx.Node) -> None:
    """`y = region(x) -> y = permute(contiguous(permute(region(x))))`, in the memory layout of the graph.

    Kernels write convolution results row by row; the replaced node may have had another layout, with channels
    innermost. Views of the result rely on the layout; kernels of other convolutions accept images in any layout.
    """
    readers = [reader for reader in node.users if not is_convolution(reader)]
    order = layout_of(node)
    if not is_convolution(node) or not readers or order == sorted(order):
        return
    back = [order.index(mode) for mode in range(len(order))]
    with node.graph.inserting_after(node):
        permuted = insert.call(aten.permute.default, node, order)
    with node.graph.inserting_after(permuted):
        laid = insert.call(aten.contiguous.default, permuted)
    with node.graph.inserting_after(laid):
        restored = insert.call(aten.permute.default, laid, back)
    for reader in readers:
        reader.replace_input_with(node, restored)


def is_convolution(node: fx.Node) -> bool:
    """Whether a node calls the region of a convolution."""
    call = info(node).call
    return call is not None and call.layout is not None


def layout_of(node: fx.Node) -> list[int]:
    """The modes of a tensor in the order of decreasing strides."""
    value = tensor_value(node)
    assert value is not None, "regions compute tensors"
    strides = [known_size(stride, UNKNOWN_ROWS) or 0 for stride in value.stride()]
    return sorted(range(value.dim()), key=lambda mode: -strides[mode])


def describe(draft: Draft, region: Region, call: RegionCall) -> RegionEntry:
    """The region's line in the report."""
    assert region.program is not None, "regions have programs"
    how = f"packed by {LIBRARIES[region.backend].name}" if region.backend else ""
    formats = {d.name: how or str(d.format) for d in region.program.declarations if not d.format.is_dense}
    einsum = "; ".join(str(statement) for statement in region.program.statements)
    computing = [node for node in region.covered if operator_name(node) not in VIEWS]  # regions share views
    scopes = sorted({scope(node) for node in computing or region.covered} - {""})
    return RegionEntry(
        call.name, [node.name for node in region.covered], scopes, einsum, formats, notes=region.notes
    )


def check(draft: Draft) -> Draft:
    """The draft, after checks that each region is called once and that every call has its region."""
    calls = [node for node in draft.graph.nodes if is_call(node)]
    assert len(calls) == len(draft.regions), f"{len(draft.regions)} regions, {len(calls)} calls"
    for node in calls:
        region = call_of(node)
        assert isinstance(region, RegionCall), f"{node.name} has no region"
        assert node.args[0] == region.handle, f"{node.name} calls another region"
    return draft
