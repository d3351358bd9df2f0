"""Regions of convolutions, which have a road of their own.

In: a marked graph. Out: a region for each convolution, by operator pattern and never by model or module name, and
`info(node).dense_reason` on those that have none. All else is the front end's.
"""

from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.lift import convolution


def lift(draft: Draft) -> Draft:
    """The draft with the regions of convolutions."""
    taken: set[fx.Node] = set()
    for node in list(draft.graph.nodes):
        if node in taken:
            continue
        filters = convolution.mark_of(node)
        if filters is None:
            continue
        found = convolution.convolution(draft, node, filters, taken)
        if isinstance(found, str):
            set_info(node, dense_reason=found)
        else:
            set_info(found.output, region=found)
            taken.update(found.covered)
    for node in draft.graph.nodes:
        if (region := info(node).region) is not None:
            draft.regions.append(region)
            set_info(node, region=None)
    return draft
