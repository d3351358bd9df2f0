"""Products with a sparse weight and the pointwise operators behind them, joined to regions.

In: fragments of `linear`, `add`, `relu`. Out: one region, `Y[i,k] = relu(sum(f, X[i,f] * W[k,f]) + b[k] + Z[i,k])`.

A region starts at a product with a sparse operand and takes in the pointwise operators behind it as long as each result
has one reader.
"""

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.node import find
from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import scope
from sparsify.passes.region import region as regions
from sparsify.passes.region.fragment import Fragment
from sparsify.passes.region.region import Region


def fuse(draft: Draft) -> Draft:
    """The draft with its regions, in graph order, each with a finished program."""
    found: list[Region] = []
    taken: set[fx.Node] = set()
    for node in draft.graph.nodes:
        fragment = fragment_of(node)
        if fragment is None or not fragment.matrices or node in taken:
            continue
        region = regions.of_fragment(fragment)
        if draft.recipe.fuse.enabled:
            join_consumers(draft, region, taken)
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


def may_join(draft: Draft, first: fx.Node, second: fx.Node) -> bool:
    """Whether the recipe lets two nodes be in one program: across modules, or inside one call of a module."""
    return draft.recipe.fuse.across == "modules" or scope(first) == scope(second)


def join_consumers(draft: Draft, region: Region, taken: set[fx.Node]) -> None:
    """Takes in pointwise readers, one after the other."""
    while True:
        output = region.output
        if len(output.users) != 1:
            return
        reader = next(iter(output.users))
        fragment = fragment_of(reader)
        if fragment is None or reader in taken or not may_join(draft, output, reader):
            return
        if fragment.kind != "pointwise" or regions.reads(fragment.value, output.name) != 1:
            return
        if not fits(region, fragment):
            return
        regions.absorb(region, fragment)


def fits(region: Region, consumer: Fragment) -> bool:
    """Whether the consumer has the shape of the region's output, so that nothing is computed twice."""
    _, indices, _ = region.statements[-1]
    access = next(part for part in find(consumer.value, Access) if part.tensor == region.output.name)
    return access.indices == tuple(Index(index) for index in consumer.indices) and len(indices) == len(
        access.indices
    )
