"""A model and a recipe to a sparse model.

In: `apply(model, "gcn", (x, edge_index))`. Out: a `SparseModule` with message passing in generated kernels.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from torch import nn

from sparsify import recipe as recipes
from sparsify.errors import RecipeError, public
from sparsify.passes.capture.captured import Dynamic
from sparsify.passes.capture.draft import ApplyRequest
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
        model: any module, unchanged unless `inplace`; the result shares its parameters, except frozen weights packed by
            the result.
        recipe: a path, a built-in name, a mapping or a `Recipe`.
        example_inputs: a tensor, a tuple of positional or a mapping of keyword arguments; without them the capture
            happens at the first call.
        trainable: whether parameters made sparse by a rule get gradients, on their patterns; None follows
            `model.training`. Dense parameters are shared with `model` in any case.
        dynamic: None for all input dimensions if export allows, `()` for none, or a mapping of names to dimensions.
        strict: raise if something made sparse by a rule would stay dense, unless dense is faster or smaller.
        verify: compare the outputs for the example inputs with the dense model's; for trained models also the gradients
            of parameters, and of inputs that require one.
        inplace: `model` may change: it follows the modes of the result, and its dense weights are replaced by packed
            ones, once all of `apply` has succeeded.
        warmup: further kinds of calls to capture ahead of time, as for `SparseModule.prepare`.
        calibration: batches of inputs, each as `example_inputs`, for rules with `method: wanda` or `sparsegpt`.

    Raises:
        RecipeError: the recipe is wrong or has `shard`, or one of its rules matches nothing or needs calibration
            data.
        DataError: the calibration data is empty, does not fit the model, or leads to NaN.
        CaptureError: no model, no tensors, or with `strict` a model that cannot be captured.
        UnsupportedOperatorError: with `strict`, an operator has no sparse form for a sparse operand.
        CompilerError: with `strict`, a kernel cannot be built.
        VerificationError: the results differ from the dense model's beyond the recipe's limits.
    """
    loaded = recipes.load(recipe)
    if loaded.shard is not None:
        raise RecipeError(
            f"recipe {loaded.name} divides the model among processes, `shard`, and apply runs in one; "
            "sparsify.shard(model, recipe)",
            loaded.file,
        )
    request = ApplyRequest(
        loaded, dynamic, strict, verify, trainable, inplace, calibration=calibration, pieces=pieces_of
    )
    module = applied(model, request, example_inputs)
    if warmup:
        module.prepare(warmup)
    return module


def pieces_of(module: SparseModule) -> Iterable[Any]:
    """The compilers that cut the source model into pieces; importing them loads Dynamo."""
    from sparsify.passes.dynamo import pieces

    return pieces.compilers(module)
