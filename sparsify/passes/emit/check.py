"""The emitted graph, looked at before it is used.

In: a draft after `emit`. Out: the same draft, or an `AssertionError`.
"""

from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.node_info import call_of


def check(draft: Draft) -> Draft:
    """The draft, after checking that each region is called once, and that nothing dangles."""
    calls = [node for node in draft.graph.nodes if is_call(node)]
    assert len(calls) == len(draft.regions), f"{len(draft.regions)} regions, {len(calls)} calls"
    for node in calls:
        region = call_of(node)
        assert isinstance(region, RegionCall), f"{node.name} has no region"
        assert node.args[0] == region.handle, f"{node.name} calls another region"
    return draft
