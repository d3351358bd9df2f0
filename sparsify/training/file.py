"""State dicts with sparse tensors in one safetensors file: values and coordinates, never densified.

In: `save_file(model.state_dict(), "model.safetensors")`. Out: the file; `load_file("model.safetensors")` returns the
state, and `load_file(path, model, optimizers)` loads the state into a model, with the masks of the file.

A sparse tensor `w` is stored as the arrays `w._vals`, `w._pos1`, `w._crd1`, `w._fill`, with format and shape in the
header. Arrays in shared memory are stored once.
"""

import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as write
from torch import Tensor, nn

from sparsify.errors import DataError, path_of, public
from sparsify.storage.format import Format
from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor
from sparsify.training.set_mask import Optimizers, mask_of, set_mask

SPARSE: Final = "sparsify.sparse"
SAME: Final = "sparsify.same"
VALUES: Final = "_vals"
FILL: Final = "_fill"


@public
def save_file(state: nn.Module | Mapping[str, Any], path: str | PathLike[str]) -> Path:
    """Writes a state into a safetensors file; an earlier file is replaced atomically.

    Args:
        state: state of a module, or the module.
        path: path of the file.

    Raises:
        DataError: a part of the state is no tensor, or the write failed.
    """
    target = path_of(path, "the file").expanduser()
    arrays: dict[str, Tensor] = {}
    sparse: dict[str, Any] = {}
    for name, value in (state.state_dict() if isinstance(state, nn.Module) else state).items():
        if not isinstance(value, Tensor) or value.is_meta:
            raise DataError(f"{name} is no tensor with values", "register it as a buffer")
        parts = {name: value}
        if isinstance(value, SparseTensor):
            parts = {f"{name}.{part}": getattr(value, part) for part in value.__tensor_flatten__()[0]}
            parts[f"{name}.{FILL}"] = torch.tensor(value.fill, dtype=value.dtype)
            sparse[name] = {"format": str(value.format), "shape": list(value.shape)}
        if taken := arrays.keys() & parts.keys():
            raise DataError(f"{min(taken)} is the name of two tensors", "rename one of them")
        arrays |= {part: array.detach() for part, array in parts.items()}
    distinct, same = _distinct(arrays)
    header = {SPARSE: json.dumps(sparse), SAME: json.dumps(same)}
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(distinct, draft, metadata=header)
        os.replace(draft, target)
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(f"cannot write {target}: {error}", "an earlier file is unchanged") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


@public
def load_file(
    path: str | PathLike[str], model: nn.Module | None = None, optimizers: Optimizers = ()
) -> dict[str, Tensor]:
    """The state in a file written by `save_file`, or in any safetensors file of dense tensors.

    Args:
        path: path of the file.
        model: receives the state. The parameters take the masks of the file and stay the same objects.
        optimizers: optimizers with state that follows the masks, as in `set_mask`; load their own state afterwards.

    Raises:
        DataError: the file is unreadable, or has other names or shapes than the unchanged model.
    """
    source = path_of(path, "the file").expanduser()
    try:
        with safe_open(source, "pt") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
        sparse, same = (json.loads(header.get(key, "{}")) for key in (SPARSE, SAME))
        arrays |= {name: arrays[first] for name, first in same.items()}
        state: dict[str, Tensor] = {
            name: _assembled(arrays, name, description) for name, description in sparse.items()
        }
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"cannot read {source}: {error}", "save it again") from error
    state |= arrays
    if model is not None:
        _load(source, model, state, optimizers)
    return state


def _distinct(arrays: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The arrays without aliases, and the first name of each alias."""
    first: dict[Any, str] = {}
    distinct, same = {}, {}
    for name, array in arrays.items():
        key = (array.data_ptr(), array.dtype, array.shape, array.stride()) if array.numel() else name
        original = first.setdefault(key, name)
        if original == name:
            is_whole = array.is_contiguous() and array.untyped_storage().nbytes() == array.nbytes
            distinct[name] = array if is_whole else array.contiguous().clone()
        else:
            same[name] = original
    return distinct, same


def _assembled(arrays: dict[str, Tensor], name: str, description: Mapping[str, Any]) -> SparseTensor:
    """A sparse tensor from its arrays, removed from the others."""
    format = Format(description["format"])
    levels = range(len(format.levels))
    pos, crd = ([arrays.pop(f"{name}.{role}{n}", None) for n in levels] for role in ("_pos", "_crd"))
    values = arrays.pop(f"{name}.{VALUES}")
    fill = arrays.pop(f"{name}.{FILL}").item()
    return SparseTensor(shared(format, description["shape"], pos, crd), values, fill)


def _load(path: Path, model: nn.Module, state: Mapping[str, Tensor], optimizers: Optimizers) -> None:
    """Loads a state into a model, the masks of sparse parameters first."""
    several: Any = [optimizers] if hasattr(optimizers, "param_groups") else list(optimizers)
    present = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if name not in present or present[name].shape != value.shape:
            difference = (
                f"{list(value.shape)} and {list(present[name].shape)}" if name in present else "not there"
            )
            raise DataError(
                f"{name} of {path} does not fit the model: {difference}", "build the model as it was"
            )
    if missing := present.keys() - state.keys():
        raise DataError(f"{path} does not hold {min(missing)}", "build the model as it was")
    for name, parameter in present.items():
        if isinstance(parameter, SparseTensor):
            set_mask(parameter, mask_of(state[name]), several)
    model.load_state_dict({name: _stored_as(value, present[name]) for name, value in state.items()})


def _stored_as(value: Tensor, like: Tensor) -> Tensor:
    """A tensor in the format of another one."""
    if not isinstance(value, SparseTensor):
        return value
    return value.to(format=like.format) if isinstance(like, SparseTensor) else value.to_dense()
