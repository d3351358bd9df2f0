"""Regions of programs that are expected to be slower than the operators that they replace stay those operators.

In: the region of `Y[i,j,l] = sum(k, X[i,j,k] * W[i,k,l])` with few zeros in W. Out: no region, a line in the report.

Regions that recognisers make have contests of their own; what the front end makes has this one.
"""

from sparsify.compiler import calibrate
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import estimated_us
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.torch_cost import operator_us
from sparsify.passes.region.region import Region


def price(draft: Draft) -> Draft:
    """The draft without regions of the front end that lose to torch's operators."""
    asked = draft.recipe.compile
    if asked.memory == "compact" or not asked.allows("torch"):
        return draft
    kept = []
    for region in draft.regions:
        reason = reason_against(draft, region) if region.equations is not None else ""
        if reason:
            choose_dense(draft, region, region.shown, reason)
        else:
            kept.append(region)
    draft.regions = kept
    return draft


def reason_against(draft: Draft, region: Region) -> str:
    """Why a region stays dense, "" where its kernels are expected to be faster, or nobody knows."""
    us = estimated_us(draft, region)
    if us is None:
        return ""
    machine = calibrate.known(draft.options)
    dense_us = sum(operator_us(node, machine) for node in region.covered)
    region.notes.append(f"expected {us:.0f} us, torch's operators {dense_us:.0f}")
    return (
        ""
        if us <= dense_us
        else f"a kernel is expected to take {us:.0f} us, torch's operators {dense_us:.0f}"
    )
