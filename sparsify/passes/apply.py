"""A model and a recipe to a sparse model.

In: `apply(model, "gcn", (x, edge_index))`. Out: a `SparseModule` whose message passing runs in generated
kernels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from torch import nn

from sparsify import recipe as recipes
from sparsify.errors import CaptureError, public
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Asked
from sparsify.passes.capture.export import Dynamic
from sparsify.passes.capture.shell import modes, usual_copy
from sparsify.passes.module.capture_call import capture_call
from sparsify.passes.module.packed_weights import Weights
from sparsify.passes.module.prepare import Kind, as_call
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.rules.calibrate import CalibrationData, calibration_data, flattened, is_calibrated
from sparsify.passes.rules.mark import rule_error
from sparsify.passes.rules.merge_masks import merge_masks
from sparsify.passes.rules.prune import prune, require_values, with_dense_weights
from sparsify.recipe import Recipe
from sparsify.sparsification.rounding import Moved
from sparsify.warn import warn

Given = str | PathLike[str] | Mapping[str, Any] | Recipe


@public
def apply(
    model: nn.Module,
    recipe: Given,
    example_inputs: Any = None,
    *,
    trainable: bool | None = None,
    dynamic: Dynamic = None,
    strict: bool = False,
    verify: bool = True,
    inplace: bool = False,
    warmup: Sequence[Kind] = (),
    calibration: Iterable[Any] | None = None,
) -> SparseModule:
    """The model with its sparse parts as kernels.

    Args:
        model: any module; it stays as it is unless `inplace`, and the result shares its parameters, except frozen
            weights that it holds packed.
        recipe: a path, a built-in name, a mapping or a `Recipe`.
        example_inputs: a tensor, a tuple of positional or a mapping of keyword arguments; without them the
            capture happens at the first call.
        trainable: whether parameters that a rule makes sparse get gradients, on their patterns; None as
            `model.training` says. Parameters that stay dense are those of `model` either way.
        dynamic: None for all input dimensions where export allows, `()` for none, or a mapping of names to
            dimensions.
        strict: raise where something that a rule makes sparse would stay dense, unless dense is faster or smaller.
        verify: compare the outputs for the example inputs with those of the dense model; of models that are trained
            the gradients of parameters, and of inputs that require one, too.
        inplace: `model` may change: it follows the modes of the result, and gives up its dense weights for those
            that are packed, once all of `apply` has succeeded.
        warmup: further kinds of calls to capture ahead, as `SparseModule.prepare` takes them.
        calibration: batches of inputs, each as `example_inputs`, for rules with `method: wanda` or `sparsegpt`.

    Raises:
        RecipeError: the recipe is wrong, or one of its rules matches nothing, or needs calibration data.
        DataError: the calibration data is empty, does not fit the model, or leads to NaN.
        CaptureError: no model, no tensors, or with `strict` a model that cannot be captured.
        UnsupportedOperatorError: with `strict`, an operator that a sparse tensor meets has no sparse form.
        CompilerError: with `strict`, a kernel cannot be built.
        VerificationError: the results differ from the dense model's beyond the recipe's limits.
    """
    asked = Asked(recipes.load(recipe), dynamic, strict, verify, trainable, inplace, calibration=calibration)
    module = applied(model, asked, example_inputs)
    if warmup:
        module.prepare(warmup)
    return module


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
