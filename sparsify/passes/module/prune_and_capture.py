"""A pruned model, and its sparse model.

In: a model, and the arguments of `apply` as an `ApplyRequest`. Out: a `SparseModule` whose weights have the zeros of
the recipe, captured for the example inputs if given.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.shell import modes, usual_copy
from sparsify.passes.module.capture_call import capture_call
from sparsify.passes.module.prepare import as_call
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.weights.optimizer_steps import tell_of_applied
from sparsify.passes.module.weights.packed_weights import Weights
from sparsify.passes.rules.calibrate import CalibrationData, calibration_data, flattened, is_calibrated
from sparsify.passes.rules.mark import rule_error
from sparsify.passes.rules.merge_masks import merge_masks
from sparsify.passes.rules.prunable import idle_targets
from sparsify.passes.rules.prune import prune, require_values, with_dense_weights
from sparsify.recipe import Recipe
from sparsify.sparsification.rules.rounding import Moved
from sparsify.warn import warn


@dataclass(frozen=True)
class Source:
    """A model with weights pruned and rounded by a recipe.

    Attributes:
        unpruned: the unchanged model.
        model: the pruned model; `unpruned` where no rule prunes or rounds.
        call: call with the example inputs, if given.
        roundings: distances by which rounding moved weights, by name.
    """

    unpruned: nn.Module
    model: nn.Module
    call: calls.Call | None
    roundings: Mapping[str, Moved]


def applied(model: nn.Module, request: ApplyRequest, example_inputs: Any = None) -> SparseModule:
    """`apply` with all its settings; a known `request.pruning` lists the weights that rules pass over."""
    before = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    source = pruned(model, request, example_inputs)
    module = sparse_module(source, replace(request, calibration=None))
    tell_of_applied(replaced_in(module, before))
    return module


def replaced_in(
    module: SparseModule, before: Mapping[str, nn.Parameter]
) -> dict[str, tuple[Tensor, Callable[[], Tensor | None]]]:
    """Replaced parameters of the model before `apply`, with functions that return their replacements."""
    parameters = dict(module._source.named_parameters())
    reference = weakref.ref(module)

    def trained(name: str) -> Tensor | None:
        now = reference()
        return None if now is None else dict(now._source.named_parameters()).get(name)

    return {
        name: (old, partial(trained, name))
        for name, old in before.items()
        if name in parameters and parameters[name] is not old and parameters[name].requires_grad
    }


def pruned(model: nn.Module, request: ApplyRequest, example_inputs: Any = None) -> Source:
    """The model pruned by the rules, before capture.

    Raises:
        CaptureError: the model is no module, or sparse already.
        RecipeError: a rule does not fit a weight.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"{type(model).__name__} is no torch.nn.Module", "the model itself, not a function"
        )
    if isinstance(model, SparseModule):
        raise CaptureError(
            "the model is sparse already", "the model that it was made of, with one recipe that has all rules"
        )
    require_values(model)
    tell_of_narrow_training(model, request)
    call = None
    if example_inputs is not None:
        args, kwargs = as_call(example_inputs)
        call = calls.flatten(calls.signature(model), args, kwargs)
    roundings: dict[str, Moved] = {}
    usual = usual_copy(model)
    usual = merge_masks(usual, request.recipe, request.pruning.merged)
    usual = with_dense_weights(usual, request.recipe)
    tell_of_idle_targets(usual, request.recipe)
    run = None
    if call is not None:
        example_call = call
        run = lambda copied: calls.run_call(copied, calls.signature(usual), calls.copied(example_call))  # noqa: E731
    data = data_for(usual, request, call)
    pruned_model = prune(
        usual,
        request.recipe,
        roundings,
        run=run,
        pruning=request.pruning,
        data=data,
        keeps_zeros=request.is_calibrated,
    )
    return Source(model, pruned_model, call, roundings)


def tell_of_idle_targets(model: nn.Module, recipe: Recipe) -> None:
    """Warns of each target without a match in a rule with other targets that match."""
    for at, rule in enumerate(recipe.rules):
        for target, near in idle_targets(model, rule).items():
            warn(f"{rule.id or f'rule {at + 1}'}: the target {target!r} matches nothing{near}")


def tell_of_narrow_training(model: nn.Module, request: ApplyRequest) -> None:
    """Warns of trained float16 weights: optimizer steps in such narrow numbers lead to NaN."""
    if not (model.training if request.trainable is None else request.trainable):
        return
    names = [name for name, p in model.named_parameters() if p.dtype == torch.float16 and p.requires_grad]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warn(
            f"{names[0]}{more}, parameters that train, are float16, in which small numbers of an optimizer are 0 and "
            "its steps NaN; some versions of transformers load checkpoints in the dtype in which they were saved: "
            "train model.float(), under torch.autocast where narrow products are wanted"
        )


def data_for(model: nn.Module, request: ApplyRequest, call: calls.Call | None) -> CalibrationData | None:
    """Calibration data, or the example inputs as a substitute; None where no rule needs calibration.

    Raises:
        DataError: the data is empty, or does not fit the model.
    """
    if request.is_calibrated:
        return None
    if not any(map(is_calibrated, request.recipe.rules)):
        if request.calibration is not None:
            warn("the calibration data is not used: no rule has `method: wanda` or `method: sparsegpt`")
        return None
    if request.calibration is not None:
        batches = flattened(request.calibration, model, as_call, call)
        return calibration_data(batches, request.recipe.calibration)
    if call is None:
        return None
    warn(
        "the example inputs alone are the calibration data, which says little of other inputs; "
        "apply(..., calibration=batches)"
    )
    return calibration_data([call], request.recipe.calibration)


def sparse_module(source: Source, request: ApplyRequest) -> SparseModule:
    """The sparse model of a pruned model (changed in place if allowed), captured with example inputs."""
    if request.inplace:
        require_no_scales(request.recipe)
    call, is_pruned = source.call, source.model is not source.unpruned
    original = source.unpruned if request.inplace and is_pruned else None
    weights = Weights(source.model, request.inplace or is_pruned, original, roundings=source.roundings)
    module = SparseModule(source.model, request, weights)
    if call is not None:
        if not any(leaf.kind != "constant" for leaf in call.shape.leaves):
            raise CaptureError("the example inputs hold no tensor", "give the inputs of one call")
        weights.may_exchange = True  # no caller holds the parameters of a model under construction
        try:
            capture_call(module, call, call.tensors(module._matrices), modes(module))
        finally:
            weights.may_exchange = False
    return module


def require_no_scales(recipe: Recipe) -> None:
    """Raises where a model that keeps running its own code would hold scaled integers."""
    for rule in recipe.rules:
        if rule.dtype == "int8":
            raise rule_error(
                recipe,
                rule,
                "`dtype: int8` with inplace=True: the code of the model knows no scales; leave out inplace and drop "
                "the model instead, the result has its own weights",
            )
