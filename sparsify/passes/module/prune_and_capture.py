"""A pruned model, and the sparse model of it.

In: a model, and the arguments of `apply` as an `Asked`. Out: a `SparseModule` whose weights have the zeros of the
recipe, captured for the example inputs where there are some.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Asked
from sparsify.passes.capture.shell import modes, usual_copy
from sparsify.passes.module.capture_call import capture_call
from sparsify.passes.module.packed_weights import Weights
from sparsify.passes.module.prepare import as_call
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.rules.calibrate import CalibrationData, calibration_data, flattened, is_calibrated
from sparsify.passes.rules.mark import rule_error
from sparsify.passes.rules.merge_masks import merge_masks
from sparsify.passes.rules.prune import prune, require_values, with_dense_weights
from sparsify.recipe import Recipe
from sparsify.sparsification.rounding import Moved
from sparsify.warn import warn


@dataclass(frozen=True)
class Source:
    """A model whose weights are pruned and rounded by a recipe.

    Attributes:
        given: the model as it was.
        model: the pruned one; `given` where no rule prunes or rounds.
        call: of the example inputs, if there are any.
        roundings: by name how far rounding moved weights.
    """

    given: nn.Module
    model: nn.Module
    call: calls.Call | None
    roundings: Mapping[str, Moved]


def applied(model: nn.Module, asked: Asked, example_inputs: Any = None) -> SparseModule:
    """The same with all that was asked for; where `asked.pruning` is known, it says what rules pass over."""
    source = pruned(model, asked, example_inputs)
    return sparse_module(source, replace(asked, calibration=None))


def pruned(model: nn.Module, asked: Asked, example_inputs: Any = None) -> Source:
    """The model as the rules prune it, before it is captured.

    Raises:
        CaptureError: it is no model, or sparse already.
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
    call = None
    if example_inputs is not None:
        args, kwargs = as_call(example_inputs)
        call = calls.flatten(calls.signature(model), args, kwargs)
    roundings: dict[str, Moved] = {}
    usual = usual_copy(model)
    usual = merge_masks(usual, asked.recipe, asked.pruning.merged)
    usual = with_dense_weights(usual, asked.recipe)
    run = None
    if call is not None:
        given = call
        run = lambda: calls.run_call(usual, calls.signature(usual), calls.copied(given))  # noqa: E731
    data = data_for(usual, asked, call)
    found = prune(
        usual,
        asked.recipe,
        roundings,
        run=run,
        pruning=asked.pruning,
        data=data,
        keeps_zeros=asked.is_calibrated,
    )
    return Source(model, found, call, roundings)


def data_for(model: nn.Module, asked: Asked, call: calls.Call | None) -> CalibrationData | None:
    """The calibration data for a model, the example inputs where there is none; None where no rule needs some.

    Raises:
        DataError: it is empty, or does not fit the model.
    """
    if asked.is_calibrated:
        return None
    if not any(map(is_calibrated, asked.recipe.rules)):
        if asked.calibration is not None:
            warn("the calibration data is not used: no rule has `method: wanda` or `method: sparsegpt`")
        return None
    if asked.calibration is not None:
        return calibration_data(flattened(asked.calibration, model, as_call), asked.recipe.calibration)
    if call is None:
        return None
    warn(
        "the example inputs alone are the calibration data, which says little of other inputs; "
        "apply(..., calibration=batches)"
    )
    return calibration_data([call], asked.recipe.calibration)


def sparse_module(source: Source, asked: Asked) -> SparseModule:
    """The sparse model of a pruned one, which it may change, captured where there are example inputs."""
    if asked.inplace:
        require_no_scales(asked.recipe)
    call, is_pruned = source.call, source.model is not source.given
    given = source.given if asked.inplace and is_pruned else None
    weights = Weights(source.model, asked.inplace or is_pruned, given, roundings=source.roundings)
    module = SparseModule(source.model, asked, weights)
    if call is not None:
        if not any(leaf.kind != "constant" for leaf in call.shape.leaves):
            raise CaptureError("the example inputs hold no tensor", "give the inputs of one call")
        weights.may_exchange = True  # nobody holds the parameters of a model that is being made
        try:
            capture_call(module, call, call.tensors(module._matrices), modes(module))
        finally:
            weights.may_exchange = False
    return module


def require_no_scales(recipe: Recipe) -> None:
    """Raises where a model whose own code goes on running would hold whole numbers that have scales."""
    for rule in recipe.rules:
        if rule.dtype == "int8":
            raise rule_error(
                recipe,
                rule,
                "`dtype: int8` with inplace=True: the code of the model knows no scales; leave out inplace and drop "
                "the model instead, the result has its own weights",
            )
