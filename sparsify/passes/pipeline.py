"""The order of the graph passes, and their execution with verification and dumps between passes.

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
from sparsify.passes.decide.padded_results import pad_results
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
    """A step of the pipeline.

    Attributes:
        name: name of the result in `SPARSIFY_DUMP`.
        run: function to the next draft.
        text: printed form of the result.
    """

    name: str
    run: Callable[[Draft], Draft]
    text: Callable[[Draft], str]


PASSES: tuple[Pass, ...] = (
    Pass("attention", attention, whole_graph),  # first: rules name attention in any spelling
    Pass(
        "marked", mark, whole_graph
    ),  # needs the canonical graph of `capture`: rules see one name per operator
    Pass("masked", masked, whole_graph),  # needs the marks; adds patterns to the reference graph
    Pass("drawn", edge_dropout, whole_graph),  # needs the marks of edges; draws also in the reference graph
    Pass(
        "sparsified", sparsified, whole_graph
    ),  # needs the marks of results; sparsifies also the reference graph
    Pass("propagated", propagate, whole_graph),  # from the marks of inputs and parameters
    Pass("reordered", reorder, whole_graph),  # needs the marks; regions are made of the reordered nodes
    Pass("general", front_end, regions_text),  # needs all marks: sparsity decides the statements of regions
    Pass("packed", pack, regions_text),  # needs the remaining products; losing ones stay dense
    Pass("priced", price, regions_text),  # needs the formats of weights
    Pass("contested", contest, regions_text),  # needs finished programs; regions slower than torch stay dense
    Pass("skipped", skip_zeros, regions_text),  # needs finished programs; times products that skip zeros
    Pass(
        "padded", pad_results, regions_text
    ),  # needs the remaining convolutions; kernels are built afterwards
    Pass("kept", keep_zeros, whole_graph),  # needs the remaining regions; masks weights with other readers
    Pass(
        "operators", keep_operators, whole_graph
    ),  # needs the remaining regions; copies the graph before kernels
    Pass("emitted", emit, whole_graph),  # cuts out memoized structures, inserts kernels
    Pass("folded", fold, whole_graph),  # needs the remaining convolutions of torch
    Pass("written", write_in_place, whole_graph),  # needs the final readers of each tensor
    Pass(
        "left_dense", left_dense, whole_graph
    ),  # needs all regions: whatever else reads sparse tensors is dense
    Pass("checked", check, whole_graph),  # last: checks the graph that will run
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
    """A key of a graph within a model: mode, structure and shapes of the inputs."""
    parts = (draft.recipe.name, draft.captured.training, draft.captured.extents, str(draft.graph))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def verify(draft: Draft, stage: str) -> None:
    """Checks that the graph is well formed after `stage`."""
    try:
        draft.graph.lint()
    except RuntimeError as error:
        raise AssertionError(f"{stage} left a malformed graph: {error}") from error
    for region in draft.regions:
        nodes = set(draft.graph.nodes)
        lost = [
            node for node in getattr(region, "inputs", ()) if isinstance(node, fx.Node) and node not in nodes
        ]
        assert not lost, f"{stage} lost {lost}, which a region needs"
