"""Regions of what has roads of its own: mixtures of experts and embeddings of bags.

In: a marked graph. Out: a region for each of these, by operator pattern and never by model or module name, and
`info(node).dense_reason` on those that have none. All else is the front end's.
"""

from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.lift import embedding_bag
from sparsify.passes.lift.experts import mixture as experts
from sparsify.passes.region.region import Region


def lift(draft: Draft) -> Draft:
    """The draft with the regions of such operators."""
    for node in list(draft.graph.nodes):
        embedding = embedding_bag.recognise(node)
        if embedding is not None and embedding.mark is not None:
            made = embedding_bag.bags_region(embedding, embedding.mark)
            settle(embedding.call if isinstance(made, str) else node, made)
            continue
        mixture = experts.recognise(node)
        gate = None if mixture is None else experts.mark_of(mixture)
        if mixture is not None and gate is not None and mixture.combine is not None:
            made = experts.experts_region(mixture, gate)
            settle(node if isinstance(made, str) else made.output, made)
            set_info(mixture.gate, dense_reason=None)  # it is computed as it was, and then read sparse
            continue
    for node in draft.graph.nodes:
        if (region := info(node).region) is not None:
            draft.regions.append(region)
            set_info(node, region=None)
    return draft


def settle(node: fx.Node, found: Region | str) -> None:
    """Notes the region that ends in a node, or why it stays dense."""
    if isinstance(found, str):
        set_info(node, dense_reason=found)
    else:
        set_info(node, region=found)
