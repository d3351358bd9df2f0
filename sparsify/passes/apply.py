"""A model and a recipe to a sparse model.

In: `apply(model, "gcn", (x, edge_index))`. Out: a `SparseModule` whose message passing runs in generated
kernels.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from torch import nn

from sparsify import recipe as recipes
from sparsify.errors import public
from sparsify.passes.capture.draft import Asked
from sparsify.passes.capture.export import Dynamic
from sparsify.passes.module.prepare import Kind
from sparsify.passes.module.prune_and_capture import applied
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.recipe import Recipe

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
    loaded = recipes.load(recipe)
    asked = Asked(
        loaded, dynamic, strict, verify, trainable, inplace, calibration=calibration, pieces=pieces_of
    )
    module = applied(model, asked, example_inputs)
    if warmup:
        module.prepare(warmup)
    return module


def pieces_of(module: SparseModule) -> Iterable[Any]:
    """The ways to cut the source model into pieces; they load Dynamo."""
    from sparsify.passes.dynamo import pieces

    return pieces.compilers(module)
