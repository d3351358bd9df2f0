"""Regions for which torch has one operator of its own, timed against it: the faster one runs.

In: the region of an embedding of bags, which torch computes in one fast loop, too. Out: the region, with what both took
as a note; or none, the operator as it was, and the report says why. Convolutions compete in all forms of torch's,
mixtures of experts in halves with those of transformers.

Every turn converts bags anew, as calls with other bags do; pruned weights of convolutions stay packed. Of a model in
training a turn has gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from sparsify.compiler import calibrate
from sparsify.compiler.prepare import build_all
from sparsify.compiler.recall import recall
from sparsify.errors import SparsifyError
from sparsify.passes.call.first_backward import Result
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose import dry_run
from sparsify.passes.choose.estimate import example, expected_sizes
from sparsify.passes.choose.grouped_experts import Rivals, module_of, rivals
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.timing import is_agreed, race
from sparsify.passes.choose.torch_convolution import FORMS, Folded, chain_at
from sparsify.passes.graph.operators import operator_name, overwritten
from sparsify.passes.region.region import Region

# By what share of torch's time a kernel may be slower by chance.
NOISE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both took.

    Attributes:
        us: of a call of the region.
        dense_us: of torch's operator.
        is_agreed: whether turns agreed.
    """

    us: float
    dense_us: float
    is_agreed: bool

    @property
    def is_won(self) -> bool:
        """Whether the kernel is not slower."""
        return self.us <= (1 + NOISE) * self.dense_us

    def __str__(self) -> str:
        disturbed = "" if self.is_agreed else " (other work disturbed it)"
        return f"timed {self.us:.0f} us, torch's {self.dense_us:.0f}{disturbed}"


def contest(draft: Draft) -> Draft:
    """The draft without the regions that torch's own operator is faster than; nothing is timed without seconds."""
    if draft.options.tune_seconds == 0:
        return draft
    kept = []
    for region in draft.regions:
        module = module_of(draft, region)
        found = outcome(draft, region) if region.is_contested or module is not None else None
        if found is None or found.is_won:
            region.notes += [] if found is None else [str(found)]
            kept.append(region)
            continue
        node = region.covered[0]
        name = operator_name(node)
        theirs = f"torch's {name} is" if module is None else "transformers' experts are"
        choose_dense(draft, region, node, f"{theirs} faster: {found}")
    draft.regions = kept
    return draft


def outcome(draft: Draft, region: Region) -> Outcome | None:
    """What a region and torch take for the example; `None` where that cannot be timed, which a note says."""
    question = f"{asked(draft, region)} {calibrate.key_of(draft.options)}"
    sizes = expected_sizes(draft, region)
    try:
        return recall(
            question,
            sizes,
            partial(timed, draft, region),
            draft.options,
            lambda outcome: outcome.is_agreed,
            classes={"Outcome": Outcome},
        )
    except SparsifyError as error:
        region.notes.append(f"not timed against torch's operator: {error}")
        return None


def asked(draft: Draft, region: Region) -> str:
    """What is compared: the program, the operators in its place, and the images of a convolution."""
    what = "a step of training" if draft.is_trainable else "a call"
    operators = ", ".join(str(node.target) for node in region.covered)
    if module_of(draft, region) is not None:
        operators = "experts by grouped products"
    layout = region.layout
    images = "" if layout is None else f" with {layout}, in the forms {[*FORMS]}"
    return f"{what} of {region.program} against torch's {operators}{images}"


def timed(draft: Draft, region: Region) -> Outcome:
    """What both take in turns.

    Raises:
        SparsifyError: the kernel cannot be built.
    """
    if (module := module_of(draft, region)) is not None:
        return timed_experts(draft, rivals(draft, region, module))
    site = dry_run.site(draft, region)
    build_all([(site.call.kernel, site.sizes)])
    arguments = wanting([example(draft, node) for node in site.arguments], draft)
    own = step(partial(anew, site.call), arguments)
    theirs = step(lambda *args: site.call.dense(*args)[0], arguments)
    with torch.set_grad_enabled(draft.is_trainable):
        found = race([own, theirs, *forms(draft, region)], draft.options.tune_seconds)
    return Outcome(found[0].us, min(one.us for one in found[1:]), is_agreed(found))


def forms(draft: Draft, region: Region) -> list[Callable[[], torch.Tensor]]:
    """Torch's convolution in the forms that take its place where it is faster; none for other operators."""
    if region.layout is None:
        return []
    chain = chain_at(region.covered[0], (), overwritten(draft.graph), can_add=region.layout.example.is_whole)
    made = (
        [] if chain is None else [Folded(chain, f, False, is_recycled=draft.options.recycle) for f in FORMS]
    )
    return [partial(form.computed, [example(draft, node) for node in form.inputs]) for form in made]


def timed_experts(draft: Draft, both: Rivals) -> Outcome:
    """What a mixture's kernel and transformers' experts take in turns."""
    own = step(both.own, wanting(both.own_arguments, draft))
    theirs = step(both.theirs, wanting(both.theirs_arguments, draft))
    with torch.set_grad_enabled(draft.is_trainable):
        found = race([own, theirs], draft.options.tune_seconds)
    return Outcome(found[0].us, found[1].us, is_agreed(found))


def wanting(arguments: Sequence[Any], draft: Draft) -> list[Any]:
    """Arguments that want gradients where those of a model in training do, none elsewhere; parameters as they are."""

    def asked(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor) or not arg.is_floating_point():
            return arg
        if isinstance(arg, torch.nn.Parameter):
            return arg if draft.is_trainable else arg.detach()
        return arg.requires_grad_() if draft.is_trainable else arg

    return [asked(arg) for arg in arguments]


def anew(call: RegionCall, *arguments: Any) -> Result:
    """A call that remembers no operand but packed weights."""
    for operand in call.operands:
        if operand.structure is not None and operand.structure.weight is None:
            operand.structure.memory.clear()
    return call(*arguments)


def step(call: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call without arguments; with the gradients of all of them where some require it."""
    wanted = [arg for arg in arguments if isinstance(arg, torch.Tensor) and arg.requires_grad]

    def run() -> Any:
        found = call(*arguments)
        assert isinstance(found, torch.Tensor), "what torch has one operator for has one result"
        return torch.autograd.grad(found, wanted, torch.ones_like(found)) if wanted else found

    return run
