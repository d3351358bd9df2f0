"""Neighbouring fragments joined to regions, each one einsum program around a sparse operand.

In: fragments of `linear`, `index_add`, `add`, `relu`.
Out: one region, `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.

A region starts at a product with a sparse operand, takes in the dense product in front of it when nothing
else reads that, and the pointwise operators behind it as long as each result has one reader. `product_order` then
decides between `A(XW)` and `(AX)W`.
"""

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.node import find
from sparsify.passes.capture.draft import Draft
from sparsify.passes.fuse.product_order import sparse_first, take_linear
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import scope
from sparsify.passes.region import region as regions
from sparsify.passes.region.fragment import Fragment
from sparsify.passes.region.region import Region


def fuse(draft: Draft) -> Draft:
    """The draft with its regions, in graph order, each with a finished program."""
    found: list[Region] = []
    taken: set[fx.Node] = set()
    limit = draft.recipe.fuse.max_einsums or len(draft.graph.nodes)
    for node in draft.graph.nodes:
        fragment = fragment_of(node)
        if fragment is None or not fragment.matrices or node in taken:
            continue
        region = regions.of_fragment(fragment)
        if draft.recipe.fuse.enabled:
            join_producer(draft, region, limit)
            join_consumers(draft, region, taken, limit)
            if len(region.statements) < limit:
                region = sparse_first(draft, region)
        taken.update(region.covered)
        found.append(region)
    for region in found:
        regions.finish(region)
    for node in draft.graph.nodes:
        if (lifted := info(node).region) is not None:
            found.append(lifted)
            set_info(node, region=None)
    place = {node: number for number, node in enumerate(draft.graph.nodes)}
    draft.regions = sorted(found, key=lambda region: place[region.output])
    return draft


def fragment_of(node: fx.Node) -> Fragment | None:
    """The fragment that lifting gave to a node."""
    fragment = info(node).fragment
    return fragment if isinstance(fragment, Fragment) else None


def join_producer(draft: Draft, region: Region, limit: int) -> None:
    """Takes in the product that computes the dense operand, when only this region reads it."""
    for operand in list(region.operands.values()):
        if not isinstance(operand, fx.Node) or len(operand.users) != 1:
            continue
        if len(region.statements) >= limit or not may_join(draft, operand, region.output):
            continue
        fragment = fragment_of(operand)
        is_product = fragment is not None and fragment.kind == "product" and not fragment.matrices
        if fragment is not None and is_product and reads_once(region, operand):
            regions.prepend(region, regions.of_fragment(fragment))


def reads_once(region: Region, operand: fx.Node) -> bool:
    """Whether a region reads the operand in one place."""
    return sum(regions.reads(value, operand.name) for _, _, value in region.statements) == 1


def may_join(draft: Draft, first: fx.Node, second: fx.Node) -> bool:
    """Whether the recipe lets two nodes be in one program: across modules, or inside one call of a module."""
    return draft.recipe.fuse.across == "modules" or scope(first) == scope(second)


def join_consumers(draft: Draft, region: Region, taken: set[fx.Node], limit: int) -> None:
    """Takes in pointwise readers, and a linear layer that narrows the result, one after the other."""
    while True:
        output = region.output
        if len(output.users) != 1:
            return
        reader = next(iter(output.users))
        fragment = fragment_of(reader)
        if fragment is None or reader in taken or not may_join(draft, output, reader):
            return
        if fragment.kind == "pointwise" and regions.reads(fragment.value, output.name) == 1:
            if not fits(region, fragment):
                return
            regions.absorb(region, fragment)
        elif len(region.statements) >= limit or not take_linear(draft, region, fragment):
            return


def fits(region: Region, consumer: Fragment) -> bool:
    """Whether the consumer has the shape of the region's output, so that nothing is computed twice."""
    _, indices, _ = region.statements[-1]
    access = next(part for part in find(consumer.value, Access) if part.tensor == region.output.name)
    return access.indices == tuple(Index(index) for index in consumer.indices) and len(indices) == len(
        access.indices
    )
