"""The order of the graph passes, and what runs them: verification and dumps between passes.

In: a `Draft` with the captured graph of a model. Out: the same draft after each pass of `PASSES`, checked and dumped.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from sparsify.dump import Dump
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.left_dense import left_dense
from sparsify.passes.choose.pack import pack
from sparsify.passes.choose.price import price
from sparsify.passes.choose.skip_zeros import skip_zeros
from sparsify.passes.choose.torch_convolution import fold
from sparsify.passes.choose.torch_operator import contest
from sparsify.passes.decide.front_end import front_end
from sparsify.passes.emit.emit import check, emit
from sparsify.passes.emit.keep_operators import keep_operators
from sparsify.passes.emit.mask_gradients import keep_zeros
from sparsify.passes.emit.write_in_place import write_in_place
from sparsify.passes.lift.attention.find import attention
from sparsify.passes.lift.attention.mask import masked
from sparsify.passes.region.printer import regions_text, whole_graph
from sparsify.passes.reorder.reorder import reorder
from sparsify.passes.rules.edge_dropout import edge_dropout
from sparsify.passes.rules.mark import mark
from sparsify.passes.rules.propagate import propagate
from sparsify.passes.rules.sparsified import sparsified
from sparsify.progress import stage


@dataclass(frozen=True, slots=True)
class Pass:
    """A step on the graph's way.

    Attributes:
        name: as `SPARSIFY_DUMP` calls the result.
        run: makes the next draft.
        text: the result as people read it.
    """

    name: str
    run: Callable[[Draft], Draft]
    text: Callable[[Draft], str]


PASSES: tuple[Pass, ...] = (
    Pass("attention", attention, whole_graph),  # first: rules name attention, however a model spells it
    Pass(
        "marked", mark, whole_graph
    ),  # needs the canonical graph of `capture`: rules see one name per operator
    Pass("masked", masked, whole_graph),  # needs the marks; the graph to compare with has its patterns
    Pass("drawn", edge_dropout, whole_graph),  # needs the marks of edges; what it draws is compared with, too
    Pass(
        "sparsified", sparsified, whole_graph
    ),  # needs the marks of results; what they lose is compared with, too
    Pass("propagated", propagate, whole_graph),  # from the marks of inputs and parameters
    Pass(
        "reordered", reorder, whole_graph
    ),  # needs the marks; regions are made of the nodes in their new order
    Pass(
        "general", front_end, regions_text
    ),  # needs all marks: what is sparse decides which statements make regions
    Pass("packed", pack, regions_text),  # needs the products that are left; what would lose stays dense
    Pass("priced", price, regions_text),  # needs the formats of weights
    Pass(
        "contested", contest, regions_text
    ),  # needs finished programs; what torch does faster stays as it is
    Pass("skipped", skip_zeros, regions_text),  # needs finished programs; products that skip zeros are timed
    Pass("kept", keep_zeros, whole_graph),  # needs the regions that stay; others mask what they read
    Pass("operators", keep_operators, whole_graph),  # needs the regions that stay; beside it kernels go in
    Pass("emitted", emit, whole_graph),  # cuts out what is computed once, puts kernels in
    Pass("folded", fold, whole_graph),  # needs what is left of torch's convolutions
    Pass("written", write_in_place, whole_graph),  # needs the final readers of each tensor
    Pass(
        "left_dense", left_dense, whole_graph
    ),  # needs all regions: whatever else reads sparse tensors is dense
    Pass("checked", check, whole_graph),  # last: looks at the graph that will run
)


def run(passes: Sequence[Pass], draft: Draft) -> Draft:
    """The draft after all passes; each result is verified and handed to the dump."""
    dump = Dump(draft.options, f"{type(draft.model).__name__}-{fingerprint(draft)}")
    dump.prepare()
    if dump.wants("graph"):
        dump.write("graph", passes[0].text(draft))
    for number, step in enumerate(passes, 1):
        stage(f"pass {number} of {len(passes)}, {step.name}")
        draft = step.run(draft)
        if dump.wants(step.name):
            dump.write(step.name, step.text(draft))
        if draft.options.debug_asserts:
            verify(draft, step.name)
    return draft


def fingerprint(draft: Draft) -> str:
    """Tells the graphs of a model apart: one for each mode, structure and shape of the inputs."""
    parts = (draft.recipe.name, draft.captured.training, draft.captured.extents, str(draft.graph))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def verify(draft: Draft, stage: str) -> None:
    """Checks that the graph is well formed after `stage`."""
    try:
        draft.graph.lint()
    except RuntimeError as error:
        raise AssertionError(f"{stage} left a malformed graph: {error}") from error
    for region in draft.regions:
        known = set(draft.graph.nodes)
        lost = [
            node for node in getattr(region, "inputs", ()) if isinstance(node, fx.Node) and node not in known
        ]
        assert not lost, f"{stage} lost {lost}, which a region needs"
