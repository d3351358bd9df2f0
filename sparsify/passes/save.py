"""A sparse model in a folder, and back: weights, recipe and manifest, no pickle.

In: `save(sparse, "model/")`, later `load("model/", model)`. Out: a folder as `saved_folder` describes it; a
`SparseModule` with these weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparsify import recipe as recipes
from sparsify.errors import DataError, path_of, public
from sparsify.passes import saved_folder
from sparsify.passes.apply import pieces_of
from sparsify.passes.capture.draft import Asked, Pruning
from sparsify.passes.capture.export import Dynamic
from sparsify.passes.capture.shell import modes
from sparsify.passes.module.prepare import Kind
from sparsify.passes.module.prune_and_capture import applied
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.rules.recipe_text import recipe_text


@public
def save(module: SparseModule, folder: str | PathLike[str]) -> Path:
    """Saves the weights of a model, its recipe and the arguments of `apply`; returns the folder.

    Tied weights are stored once. The code of the model is not stored: `load` takes the model. The folder holds the
    earlier model until the new one is complete on the disk, also when the process is killed. Files of others stay.

    Args:
        module: the result of `apply`.
        folder: made when it does not exist; `~` is the home folder.

    Raises:
        DataError: the folder cannot be written, the disk is full, or the model has a state that is no tensor.
    """
    if not isinstance(module, SparseModule):
        raise DataError(
            f"{type(module).__name__} is no sparse model", "save what sparsify.apply(model, recipe) returns"
        )
    place = path_of(folder, "the folder").expanduser()
    with module._weights.lock:
        dense = module._weights.mirror(modes(module._source))
        tensors, tied = distinct(dense.model.state_dict())
        dense.clear()
    asked = module._asked
    facts = {
        "model": type(module._source).__name__,
        "training": module.training,
        "strict": asked.strict,
        "verify": asked.verify,
        "trainable": asked.trainable,
        "tied": tied,
        "passed": asked.pruning.passed,
        "sparsify": version(),
        "torch": str(torch.__version__),
    }
    saved_folder.write(place, tensors, recipe_text(asked.recipe), facts)
    return place


@public
def load(
    folder: str | PathLike[str],
    model: nn.Module,
    example_inputs: Any = None,
    *,
    trainable: bool | EllipsisType | None = ...,
    dynamic: Dynamic = None,
    strict: bool | EllipsisType = ...,
    verify: bool | EllipsisType = ...,
    inplace: bool = False,
    warmup: Sequence[Kind] = (),
) -> SparseModule:
    """The sparse model in a folder that `save` wrote.

    Args:
        folder: as given to `save`.
        model: of the class that was saved; its weights are overwritten by those of the folder. Where anything
            fails it keeps its weights and modes.
        example_inputs: as for `apply`; without them the capture happens at the first call.
        trainable, strict, verify: as for `apply`; left out, `...`, as at saving.
        dynamic, inplace, warmup: as for `apply`.

    Raises:
        DataError: a file is missing, damaged or of a newer layout, or the weights do not fit the model.
        RecipeError: the recipe is wrong.
        CaptureError, CompilerError, VerificationError: as `apply`.
    """
    place = path_of(folder, "the folder").expanduser()
    manifest, tensors, recipe = saved_folder.read(place, recipes.loads)
    require_class(place, manifest.model, model)
    pruning = Pruning(passed=manifest.passed or {}, is_known=manifest.passed is not None)
    with unchanged_on_failure(model):
        load_state(place, manifest.model, model, tensors)
        model.train(manifest.training)
        asked = Asked(
            recipe,
            dynamic,
            manifest.strict if strict is ... else strict,
            manifest.verify if verify is ... else verify,
            manifest.trainable if trainable is ... else trainable,
            inplace,
            pruning,
            is_calibrated=True,
            pieces=pieces_of,
        )
        module = applied(model, asked, example_inputs)
        if warmup:
            module.prepare(warmup)
        return module


def require_class(place: Path, saved: str, model: nn.Module) -> None:
    """Raises where the class of a model is neither that of the saved one nor derived from it."""
    if not isinstance(model, nn.Module):
        raise DataError(
            f"{type(model).__name__} is no torch.nn.Module", f"load takes a model of class {saved}"
        )
    if saved not in (kind.__name__ for kind in type(model).__mro__):
        raise DataError(
            f"{place} holds a {saved}, and the model is a {type(model).__name__}",
            f"give a model of class {saved}, built with the arguments that it had when it was saved",
        )


def load_state(place: Path, saved: str, model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copies tensors into a model.

    Raises:
        DataError: names or shapes differ.
    """
    try:
        model.load_state_dict(tensors)
    except Exception as error:  # modules may load their state by code of their own
        raise DataError(
            f"the weights in {place}, of a {saved}, do not fit this {type(model).__name__}: {error}",
            "build the model with the arguments that it had when it was saved",
        ) from None


@contextmanager
def unchanged_on_failure(model: nn.Module) -> Iterator[None]:
    """After an exception parameters, buffers and modes of a model are as they were; costs a copy of its tensors."""
    values = {id(tensor): tensor.detach().clone() for tensor in tensors_of(model) if not is_lazy(tensor)}
    before = [
        (module, dict(module._parameters), dict(module._buffers), module.training)
        for module in model.modules()
    ]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for module, parameters, buffers, is_training in before:
                module._parameters.update(parameters)
                module._buffers.update(buffers)
                module.training = is_training
            for tensor in tensors_of(model):
                if id(tensor) in values:
                    tensor.detach().copy_(values[id(tensor)])
        raise


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a model, each once."""
    yield from model.parameters()
    yield from model.buffers()


def distinct(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a state, each once, and for further names of a tensor its first.

    Raises:
        DataError: a part of the state is no tensor, or of a dtype that files cannot hold.
    """
    first: dict[tuple[Any, ...], str] = {}
    tensors, tied = {}, {}
    for name, value in state.items():
        require_storable(name, value)
        known = first.setdefault(memory_of(name, value), name)
        if known == name:
            tensors[name] = value.detach().resolve_conj().resolve_neg().contiguous().clone()
        else:
            tied[name] = known
    return tensors, tied


def memory_of(name: str, value: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same memory read in the same way."""
    if not value.numel():
        return (name,)
    return (
        value.data_ptr(),
        value.dtype,
        value.shape,
        value.stride(),
        value.is_conj(),
        value.is_neg(),
    )


def require_storable(name: str, value: Any) -> None:
    """Raises for a part of a state that safetensors files cannot hold."""
    if not isinstance(value, torch.Tensor):
        raise DataError(
            f"{name} is {type(value).__name__}, and only tensors are saved", "register it as a buffer"
        )
    if is_lazy(value) or value.is_meta:
        raise DataError(f"{name} has no values yet", "run the model once, then save it")
    if value.dtype == torch.complex128 or value.layout != torch.strided:
        what = f"a tensor of {value.dtype}" if value.layout == torch.strided else f"a {value.layout} tensor"
        raise DataError(f"{name} is {what}, which is not saved", "convert it to a dense tensor of complex64")


def version() -> str:
    """The version of this package."""
    from sparsify import __version__

    return __version__
