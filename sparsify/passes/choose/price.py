"""Regions of programs that are expected to be slower than the operators that they replace stay those operators.

In: the region of `Y[i,j,l] = sum(k, X[i,j,k] * W[i,k,l])` with few zeros in W. Out: no region, a line in the report.

Regions that recognisers make have contests of their own; what the front end makes has this one. A dense input that a
rule declares sparse is read once a call, to tell whether its entries have changed: what the regions that read it gain
together must be more than that.
"""

from math import inf

from torch import fx

from sparsify.compiler import calibrate
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import estimated_us
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.torch_cost import bytes_of, operator_us
from sparsify.passes.region.region import Region


def price(draft: Draft) -> Draft:
    """The draft without regions of the front end that lose to torch's operators."""
    asked = draft.recipe.compile
    if asked.memory == "compact" or not asked.allows("torch"):
        return draft
    gains = {id(region): gain_us(draft, region) for region in draft.regions}
    reasons = {
        id(region): f"a kernel is expected to take {-gain:.0f} us more than torch's operators"
        for region in draft.regions
        if (gain := gains[id(region)]) < 0
    }
    kept = [region for region in draft.regions if id(region) not in reasons]
    for leaf in dict.fromkeys(leaf for region in kept for leaf in inputs_told_apart(region)):
        readers = [region for region in kept if leaf in inputs_told_apart(region)]
        gained, read_us = sum(gains[id(region)] for region in readers), reading_us(draft, leaf)
        if gained < read_us:
            reason = f"kernels are expected to save {gained:.0f} us, and to read {leaf} for changes takes {read_us:.0f}"
            reasons |= {id(region): reason for region in readers}
    for region in draft.regions:
        if id(region) in reasons:
            choose_dense(draft, region, region.shown, reasons[id(region)])
    draft.regions = [region for region in draft.regions if id(region) not in reasons]
    return draft


def gain_us(draft: Draft, region: Region) -> float:
    """What a region is expected to save; without bound where it has a contest of its own, or nobody knows."""
    us = estimated_us(draft, region) if region.equations is not None else None
    if us is None:
        return inf
    machine = calibrate.known(draft.options)
    dense_us = sum(operator_us(node, machine) for node in region.covered)
    region.notes.append(f"expected {us:.0f} us, torch's operators {dense_us:.0f}")
    return dense_us - us


def inputs_told_apart(region: Region) -> list[fx.Node]:
    """The dense inputs that a region reads as sparse operands, and that a recipe does not call static."""
    read = [matrix.dense for matrix in region.matrices if not matrix.mark.static]
    return [node for node in read if node is not None and node.op == "placeholder"]


def reading_us(draft: Draft, leaf: fx.Node) -> float:
    """What it takes to read an input once, by one thread."""
    moved = bytes_of(leaf)
    return moved / calibrate.known(draft.options).reads.at(moved)
