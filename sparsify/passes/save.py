"""A sparse model in a folder, and back: weights, recipe and manifest, no pickle; optionally its graphs.

In: `save(sparse, "model/")`, later `load("model/", model)`; or `save(sparse, "served/", kernels=True)`, later
`load("served/")`. Out: a folder as described in `saved_folder`; a `SparseModule` with the same weights.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparsify import recipe as recipes
from sparsify.compiler.cpp.toolchain import levels
from sparsify.errors import DataError, path_of, public
from sparsify.passes import saved_folder
from sparsify.passes.capture.captured import Dynamic
from sparsify.passes.capture.draft import ApplyRequest, Pruning
from sparsify.passes.capture.shell import modes
from sparsify.passes.module.prepare import Kind
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.rules.recipe_text import recipe_text
from sparsify.passes.served.describe import Described, described
from sparsify.passes.served.load import load_served
from sparsify.passes.served.served_module import ServedModule

if TYPE_CHECKING:
    from sparsify.passes.manifest import Manifest


@public
def save(
    module: SparseModule,
    folder: str | PathLike[str],
    *,
    kernels: bool = False,
    target: Sequence[str] = (levels.NATIVE,),
) -> Path:
    """Saves the weights of a model, its recipe and the arguments of `apply`; returns the folder.

    Tied weights are stored once. Without kernels weights are dense and the code of the model is not stored: `load`
    takes the model. With kernels weights are stored in the model's packed form, and the folder has the graphs of the
    kinds of calls captured in evaluation, with kernels compiled for the sizes of earlier calls: `load` needs neither
    the model nor a compiler. Models in pieces keep dense weights and the kernels of pieces, and `load` takes the model.
    The folder holds the earlier model until the new one is complete on the disk, also when the process is killed. Other
    files in the folder are kept.

    Args:
        module: the result of `apply`; with kernels in evaluation, and called once for each kind of call.
        folder: path of the folder, created if missing; `~` is the home folder.
        kernels: whether to store graphs and kernels.
        target: the CPUs of the compiled kernels, `"native"` for this one, `"avx2"`, `"avx512"`.

    Raises:
        DataError: the folder cannot be written, the disk is full, the model has a non-tensor state, or with kernels a
            computation outside of graphs.
        CompilerError: kernels cannot be built for a target.

    >>> sparse = sparsify.apply(model.eval(), recipe, (x,))  # doctest: +SKIP
    >>> sparsify.save(sparse, "served/", kernels=True)  # doctest: +SKIP
    >>> served = sparsify.load("served/")  # doctest: +SKIP
    """
    if not isinstance(module, SparseModule):
        raise DataError(
            f"{type(module).__name__} is no sparse model", "save what sparsify.apply(model, recipe) returns"
        )
    path = path_of(folder, "the folder").expanduser()
    if isinstance(module, ServedModule):
        raise DataError(
            f"this model was loaded without its class from {module.folder}, which has all of it",
            "copy that folder",
        )
    if kernels:
        required_levels = require_levels(target)
        served = described_for(module, required_levels)
        graphs = saved_folder.Graphs(json.dumps(served.document), served.files)
        facts = {**facts_of(module, {}), **served.facts}
        saved_folder.write(path, served.arrays, recipe_text(module._request.recipe), facts, graphs)
        return path
    tensors, tied = dense_tensors(module)
    saved_folder.write(path, tensors, recipe_text(module._request.recipe), facts_of(module, tied))
    return path


def described_for(module: SparseModule, target: Sequence[str]) -> Described:
    """The document of a model with kernels, of whole graphs or in pieces.

    Raises:
        DataError: the model trains, was not captured, or has computations that no file holds.
        CompilerError: kernels cannot be built for a level.
    """
    if module._captures.pieces is not None:
        from sparsify.passes.served import pieces

        if pieces.is_in_pieces(module):
            return pieces.described_pieces(module, target, *dense_tensors(module))
    return described(module, target)


def dense_tensors(module: SparseModule) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The dense weights of a model, each once, and the first name for each further name of a weight.

    Raises:
        DataError: a part of the state is no tensor, or of a dtype that files cannot hold.
    """
    with module._weights.lock:
        dense = module._weights.mirror(modes(module._source))
        tensors, tied = distinct(dense.model.state_dict())
        dense.clear()
    return tensors, tied


def facts_of(module: SparseModule, tied: Mapping[str, str]) -> dict[str, Any]:
    """The facts of a manifest about a model, with the further names of tied weights."""
    request = module._request
    return {
        "model": type(module._source).__name__,
        "training": module.training,
        "strict": request.strict,
        "verify": request.verify,
        "trainable": request.trainable,
        "tied": dict(tied),
        "passed": request.pruning.passed,
        "sparsify": version(),
        "torch": str(torch.__version__),
    }


def require_levels(target: Any) -> tuple[str, ...]:
    """The levels of CPUs named by a target, each once.

    Raises:
        DataError: no level, or an unknown one.
    """
    names = (target,) if isinstance(target, str) else tuple(target)
    for name in names:
        if name not in levels.NAMES:
            raise DataError(f"target {name!r} is no level of CPUs", f"some of {', '.join(levels.NAMES)}")
    if not names:
        raise DataError("target names no level of CPUs", f"some of {', '.join(levels.NAMES)}")
    return tuple(dict.fromkeys(names))


@public
def load(
    folder: str | PathLike[str],
    model: nn.Module | None = None,
    example_inputs: Any = None,
    *,
    trainable: bool | EllipsisType | None = ...,
    dynamic: Dynamic = None,
    strict: bool | EllipsisType = ...,
    verify: bool | EllipsisType = ...,
    inplace: bool = False,
    warmup: Sequence[Kind] = (),
    kernels: bool = False,
) -> SparseModule:
    """The sparse model in a folder written by `save`.

    Without a model the folder must have been saved with kernels: weights are mapped, and nothing is pruned, captured,
    timed or compiled. The result is frozen and computes the saved kinds of calls. With a model only data of the folder
    is read, unless `kernels` allows its shared objects for the pieces of a model: nothing is timed or compiled then.

    Args:
        folder: as given to `save`.
        model: model of the saved class; its weights are overwritten by the folder's. After a failure it keeps its
            weights and modes. None for a folder with kernels.
        example_inputs: as for `apply`; without them the capture happens at the first call. Without a model, inputs of a
            first call, which is made now.
        trainable, strict, verify: as for `apply`; left out, `...`, as at saving.
        dynamic, inplace, warmup: as for `apply`.
        kernels: with a model in pieces, whether its pieces run by the folder's kernels, which are code: for folders
            saved by yourself or by somebody you trust.

    Raises:
        DataError: a file is missing, damaged or of a newer layout, the weights do not fit the model, or neither kernels
            nor a model are given; or with a model and `kernels` the folder has no kernels of pieces.
        RecipeError: the recipe is wrong.
        CaptureError, CompilerError, VerificationError: as `apply`.
    """
    path = path_of(folder, "the folder").expanduser()
    if model is None:
        first = () if example_inputs is None else ({"inputs": example_inputs},)
        return without_model(path, (*first, *warmup), trainable is True or dynamic is not None or inplace)
    from sparsify.passes.module.prune_and_capture import applied

    manifest, tensors, request = contents(path, kernels)
    require_class(path, manifest.model, model)
    given = {"trainable": trainable, "strict": strict, "verify": verify}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not ...}
    with unchanged_on_failure(model):
        load_state(path, manifest.model, model, tensors)
        model.train(manifest.training)
        request = replace(request, dynamic=dynamic, inplace=inplace, **changes)
        module = applied(model, request, example_inputs)
        if warmup:
            module.prepare(warmup)
        return module


def contents(folder: Path, kernels: bool) -> "tuple[Manifest, dict[str, torch.Tensor], ApplyRequest]":
    """The manifest and the dense weights of a folder, and the arguments of `apply` when it was saved.

    Args:
        folder: path of the folder.
        kernels: whether shared objects may be loaded, for pieces.

    Raises:
        DataError: a file is missing, damaged or of a newer layout, or the folder lacks the requested pieces.
        RecipeError: the recipe is wrong.
    """
    from sparsify.passes.apply import pieces_of
    from sparsify.passes.served.pieces import Unpacked

    unpacked = Unpacked(kernels)
    manifest, tensors, recipe = saved_folder.read(folder, recipes.loads, unpacked)
    if kernels and unpacked.pieces is None:
        raise DataError(
            f"{folder} has no kernels of pieces of a {manifest.model}, which a load with the model could use",
            "leave kernels out; without the model, sparsify.load(folder) uses the kernels of whole graphs",
        )
    request = ApplyRequest(
        recipe,
        strict=manifest.strict,
        verify=manifest.verify,
        trainable=manifest.trainable,
        pruning=Pruning(passed=manifest.passed or {}, is_known=manifest.passed is not None),
        is_calibrated=True,
        pieces=pieces_of,
        known_pieces=unpacked.pieces,
    )
    return manifest, tensors, request


def without_model(folder: Path, warmup: Sequence[Kind], is_captured: bool) -> SparseModule:
    """The served model of a folder, after a call of each kind.

    Args:
        is_captured: whether an argument requires a capture.

    Raises:
        DataError: a capture is required, or the folder has no kernels.
    """
    if is_captured:
        raise DataError(
            "trainable, dynamic and inplace are about capturing, and without a model nothing is captured",
            "leave them out, or give the model, sparsify.load(folder, model)",
        )
    served = load_served(folder)
    served.prepare(warmup)
    return served


def require_class(folder: Path, saved: str, model: nn.Module) -> None:
    """Raises where the class of a model is neither the saved class nor a subclass."""
    if not isinstance(model, nn.Module):
        raise DataError(
            f"{type(model).__name__} is no torch.nn.Module", f"load takes a model of class {saved}"
        )
    if saved not in (kind.__name__ for kind in type(model).__mro__):
        raise DataError(
            f"{folder} holds a {saved}, and the model is a {type(model).__name__}",
            f"give a model of class {saved}, built with the arguments that it had when it was saved",
        )


def load_state(folder: Path, saved: str, model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copies tensors into a model.

    Raises:
        DataError: names or shapes differ.
    """
    try:
        model.load_state_dict(tensors)
    except Exception as error:  # modules may have custom loading code
        raise DataError(
            f"the weights in {folder}, of a {saved}, do not fit this {type(model).__name__}: {error}",
            "build the model with the arguments that it had when it was saved",
        ) from None


@contextmanager
def unchanged_on_failure(model: nn.Module) -> Iterator[None]:
    """A context that restores parameters, buffers and modes after an exception; copies all tensors."""
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
    """The tensors of a state, each once, and the first name for each further name of a tensor.

    Raises:
        DataError: a part of the state is no tensor, or of a dtype that files cannot hold.
    """
    first: dict[tuple[Any, ...], str] = {}
    tensors, tied = {}, {}
    for name, value in state.items():
        require_storable(name, value)
        original = first.setdefault(memory_of(name, value), name)
        if original == name:
            tensors[name] = value.detach().resolve_conj().resolve_neg().contiguous().clone()
        else:
            tied[name] = original
    return tensors, tied


def memory_of(name: str, value: torch.Tensor) -> tuple[Any, ...]:
    """A key equal for tensors with the same memory and the same view of it."""
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
    """The version of the package."""
    from sparsify import __version__

    return __version__
