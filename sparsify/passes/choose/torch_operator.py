"""Benchmark of regions against a single operator of torch, or of another library.

In: the region of an embedding of bags, which torch computes in one fast loop, too. Out: the region, with both times as
a note; or the original operator, with the reason in the report.

Convolutions compete with all forms of torch's. In training mixtures of experts compete with transformers' own experts
at the example's number of tokens: kernels copy tiles of each expert's matrices, which does not pay off for few tokens,
and multiply half precision as float32, where CPUs may have faster instructions; otherwise each call decides by its
tokens, see `row_ranges`. Every turn converts bags anew, as calls
with new bags do; pruned weights of convolutions stay packed. For a model in training a turn includes gradients.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import fx, nn

from sparsify.compiler.kernel.prepare import build_all, prepare_all
from sparsify.errors import SparsifyError
from sparsify.passes.call.bind import extract
from sparsify.passes.call.first_backward import Result
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.capture.libraries import transformers_experts
from sparsify.passes.choose.autotune import Candidate, Winner, autotune, is_known
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example, expected_sizes
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.row_ranges import products_of
from sparsify.passes.choose.site import Site, scratch_site
from sparsify.passes.choose.torch_convolution import FORMS, Folded, chain_at
from sparsify.passes.graph.operators import known_size, operator_name, overwritten, scope, tensor_value
from sparsify.passes.lift.experts.mixture import BY_EXPERT, MIXTURE
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.storage.interop.tensors import tensor

# Experts per token for a module without this number.
CHOSEN: Final = 2


def module_of(draft: Draft, region: Region) -> nn.Module | None:
    """The stacked experts of transformers computed by a region; `None` for other regions."""
    value = tensor_value(region.output)
    if MIXTURE not in region.notes or value is None or not value.dtype.is_floating_point:
        return None
    names = {scope(node).partition("@")[0] for node in region.covered}
    named = dict(draft.model.named_modules())
    modules = [named[name] for name in names if name in named]
    modules = [
        module
        for module in modules
        if transformers_experts.is_stacked(module) and transformers_experts.is_known(module)
    ]
    return modules[0] if len(modules) == 1 else None


def expert_calls(
    draft: Draft, region: Region, module: Any
) -> dict[str, tuple[Callable[..., torch.Tensor], Sequence[Any]]]:
    """Both functions, each with arguments of as many rows as the example; tokens choose experts at random.

    Raises:
        SparsifyError: the kernel cannot be built.
    """
    site = scratch_site(draft, region)
    kernel = site.call.kernel
    build_all([(kernel, site.sizes)])
    assert region.program is not None, "a mixture has a program"
    operands = {region.names[name]: operand for name, operand in region.operands.items()}
    values = {name: example(draft, node) for name, node in operands.items() if isinstance(node, fx.Node)}
    value = tensor_value(region.output)
    assert value is not None, "a mixture is a tensor"
    tokens, width = (known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS for extent in value.shape)
    draws = torch.Generator().manual_seed(0)
    count = int(getattr(module.config, "num_experts_per_tok", CHOSEN))
    weights, chosen = torch.rand(tokens, module.num_experts, generator=draws).topk(count)
    weights = weights.to(value.dtype)
    dense = torch.zeros(tokens, module.num_experts, dtype=value.dtype).scatter(1, chosen, weights)
    (gate,) = (name for name, operand in operands.items() if isinstance(operand, Matrix))
    values[gate] = tensor(dense, BY_EXPERT)
    hidden = torch.randn(tokens, width, generator=draws).to(value.dtype)
    table: Any = vars(sys.modules[transformers_experts.MODULE])["ALL_EXPERTS_FUNCTIONS"]
    kernel_operands = [values[name] for name in region.program.inputs]
    stacked = [getattr(module, name) for name in transformers_experts.weight_names(module)]

    def theirs(hidden: torch.Tensor, weights: torch.Tensor, *_: Any) -> torch.Tensor:
        result: torch.Tensor = table[transformers_experts.OWN](module, hidden, chosen, weights)
        return result

    return {"kernel": (kernel, kernel_operands), "transformers": (theirs, [hidden, weights, *stacked])}


KIND: Final = "operator"


def contest(draft: Draft) -> Draft:
    """The draft without undone regions, and without regions slower than torch's operator, as far as timed."""
    undo(draft)
    if draft.options.tune_seconds == 0:
        return draft
    regions = []
    sites = built_sites(draft)
    for region in draft.regions:
        module = module_of(draft, region) if products_of(draft, region) is None else None
        is_timed = region.is_contested or module is not None
        timing = outcome(draft, region, sites.pop(id(region), None)) if is_timed else None
        if timing is None or not timing.name:
            if timing is not None:
                region.notes.append(described(timing))
                region.dense_form = dense_form(timing)
            regions.append(region)
            continue
        node = region.covered[0]
        name = operator_name(node)
        theirs = f"torch's {name} is" if module is None else "transformers' experts are"
        choose_dense(draft, region, node, f"{theirs} faster: {described(timing)}")
    draft.regions = regions
    return draft


def built_sites(draft: Draft) -> dict[int, Site]:
    """The calls of regions to be timed, with kernels built side by side, by identity of the region.

    Equal regions are timed once. A kernel that cannot be built is reported where its region is timed.
    """
    asked: dict[tuple[str, str], Region] = {}
    for region in draft.regions:
        if region.is_contested and module_of(draft, region) is None:
            text, sizes = question(draft, region), expected_sizes(draft, region)
            if not is_known(text, sizes, draft.options):
                asked.setdefault((text, repr(sizes.without_operands())), region)
    sites: dict[int, Site] = {}
    for region in asked.values():
        with suppress(SparsifyError):
            sites[id(region)] = scratch_site(draft, region)
    prepare_all([(site.call.kernel, site.sizes) for site in sites.values()])
    return sites


def undo(draft: Draft) -> None:
    """Drops the regions excluded from kernels of this package, except regions of libraries."""
    reasons = [(region, draft.why_undone(region.output)) for region in draft.regions if not region.backend]
    for region, why in reasons:
        if why:
            choose_dense(draft, region, region.covered[0] if region.is_contested else region.shown, why)
    undone = {id(region) for region, why in reasons if why}
    draft.regions = [region for region in draft.regions if id(region) not in undone]


def outcome(draft: Draft, region: Region, site: Site | None = None) -> Winner | None:
    """The times of a region and of torch for the example; `None`, with a note, if they cannot be timed.

    Args:
        site: call of the region, if known.
    """
    try:
        return autotune(
            KIND,
            question(draft, region),
            partial(candidates, draft, region, site),
            sizes=expected_sizes(draft, region),
            options=draft.options,
            seconds=draft.options.tune_seconds,
            has_gradients=draft.is_trainable,
        )
    except SparsifyError as error:
        region.notes.append(f"not timed against torch's operator: {error}")
        return None


def described(timing: Winner) -> str:
    """The text of the measured times."""
    dense_us = min(us for _, us in timing.times[1:])
    return f"timed {timing.us:.0f} us, torch's {dense_us:.0f}{timing.disturbed}"


def dense_form(timing: Winner) -> str:
    """The fastest dense form of a convolution, "" for the unchanged operators."""
    name, _ = min(timing.times[1:], key=lambda one: one[1])
    return name if name in FORMS else ""


def question(draft: Draft, region: Region) -> str:
    """The cache key of a benchmark: program, replaced operators, and the images of a convolution."""
    what = "a step of training" if draft.is_trainable else "a call"
    operators = ", ".join(str(node.target) for node in region.covered)
    if module_of(draft, region) is not None:
        operators = "experts by grouped products"
    layout = region.layout
    images = "" if layout is None else f" with {layout}, in the forms {[*FORMS]}"
    return f"{what} of {region.program} against torch's {operators}{images}"


def candidates(draft: Draft, region: Region, site: Site | None = None) -> list[Candidate]:
    """The kernel of a region, and torch's operator in all forms; or transformers' experts.

    Args:
        site: call of the region, if known.

    Raises:
        SparsifyError: the kernel cannot be built.
    """
    if (module := module_of(draft, region)) is not None:
        both = expert_calls(draft, region, module).items()
        return [Candidate(name, step(call, wanting(operands, draft))) for name, (call, operands) in both]
    site = scratch_site(draft, region) if site is None else site
    build_all([(site.call.kernel, site.sizes)])
    arguments = wanting([example(draft, node) for node in site.arguments], draft)
    kernel_call = step(partial(anew, site.call), arguments)
    theirs = step(lambda *args: site.call.dense(*args)[0], arguments)
    return [Candidate("kernel", kernel_call), Candidate("torch", theirs), *forms(draft, region)]


def forms(draft: Draft, region: Region) -> list[Candidate]:
    """Torch's convolution in its replacement forms; none for other operators."""
    if region.layout is None:
        return []
    chain = chain_at(region.covered[0], (), overwritten(draft.graph), can_add=region.layout.example.is_whole)
    if chain is None or not set(chain.covered) <= set(region.covered):
        return []
    folded_forms = [Folded(chain, form, has_pool=False) for form in FORMS]
    rest = extract(draft.graph, [chain.last, *region.read], [region.output]).forward
    others = [example(draft, node) for node in region.read]
    inputs = [example(draft, node) for node in folded_forms[0].inputs]

    def run(folded: Folded) -> Any:
        result = folded.computed(inputs)
        return result if chain.last is region.output else rest(result, *others)[0]

    return [Candidate(form, partial(run, one)) for form, one in zip(FORMS, folded_forms, strict=True)]


def wanting(arguments: Sequence[Any], draft: Draft) -> list[Any]:
    """Arguments with `requires_grad` as in training, without it otherwise; parameters keep theirs in training."""

    def with_training_gradient(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor) or not arg.is_floating_point():
            return arg
        if isinstance(arg, torch.nn.Parameter):
            return arg if draft.is_trainable else arg.detach()
        return arg.requires_grad_() if draft.is_trainable else arg

    return [with_training_gradient(arg) for arg in arguments]


def anew(call: RegionCall, *arguments: Any) -> Result:
    """A call without memoized operands, except packed weights."""
    for operand in call.operands:
        if operand.structure is not None and operand.structure.weight is None:
            operand.structure.memory.clear()
    return call(*arguments)


def step(call: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call without arguments; with the gradients of all arguments that require grad."""
    targets = [arg for arg in arguments if isinstance(arg, torch.Tensor) and arg.requires_grad]

    def run() -> Any:
        result = call(*arguments)
        assert isinstance(result, torch.Tensor), "what torch has one operator for has one result"
        return torch.autograd.grad(result, targets, torch.ones_like(result)) if targets else result

    return run
