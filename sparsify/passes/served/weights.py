"""The tensors of a model as arrays of a safetensors file, and back as views of the mapped file.

In: `{"lin.weight": SparseTensor, "bn.mean": tensor}`. Out: arrays `lin.weight._vals`, `lin.weight._pos1`, `bn.mean`,
and a document for reassembly. Aliased arrays, as of tied weights, are stored once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparsify.errors import DataError
from sparsify.passes.served.values import decoded, encoded
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

VALUES: Final = "_vals"


def apart(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays of tensors, and a document for the reassembly of each tensor by name.

    Raises:
        DataError: a tensor that no file holds.
    """
    arrays: dict[str, Tensor] = {}
    first: dict[Any, str] = {}
    document: dict[str, Any] = {}

    def kept(name: str, array: Tensor) -> str:
        if array.is_meta or array.dtype == torch.complex128 or array.layout is not torch.strided:
            raise DataError(f"{name} is a tensor of {array.dtype} that no file holds", "convert the model")
        key = (array.data_ptr(), array.dtype, array.shape, array.stride()) if array.numel() else name
        known = first.setdefault(key, name)
        if known == name:
            plain = array.detach().resolve_conj().resolve_neg().contiguous()
            is_whole = plain.untyped_storage().nbytes() == plain.nbytes
            arrays[name] = plain if is_whole else plain.clone()
        return known

    for name, tensor in tensors.items():
        if isinstance(tensor, SparseTensor):
            pattern = tensor._pattern
            document[name] = {
                "format": str(pattern.format),
                "shape": list(pattern.shape),
                "values": kept(f"{name}.{VALUES}", tensor._vals),
                "fill": encoded(tensor._fill),
                **{
                    role: [None if a is None else kept(f"{name}._{role}{n}", a) for n, a in enumerate(found)]
                    for role, found in (("pos", pattern._pos), ("crd", pattern._crd))
                },
            }
        else:
            document[name] = kept(name, tensor)
    return arrays, document


def together(
    array: Callable[[str], Tensor], document: Mapping[str, Any], *, is_trusted: bool
) -> Iterator[tuple[str, Tensor]]:
    """The tensors by name; tensors of equal patterns share one pattern object.

    Args:
        array: function from names to arrays.
        document: document made by `apart`.
        is_trusted: whether patterns need no validation: a folder with kernels contains code, and is trusted already.

    Raises:
        SparsifyError: arrays that form no pattern.
    """
    patterns: dict[Any, Pattern] = {}
    made: dict[Any, SparseTensor] = {}
    for name, told in document.items():
        if isinstance(told, str):
            yield name, array(told)
            continue
        pos, crd = ([None if a is None else array(a) for a in told[role]] for role in ("pos", "crd"))
        values = array(told["values"])
        key = (told["format"], *told["shape"], *told["pos"], *told["crd"])
        if (*key, told["values"]) in made:
            yield name, made[*key, told["values"]]
            continue
        if key not in patterns:
            shape = tuple(told["shape"])
            found = Pattern(Format(told["format"]), shape, pos, crd, is_private=True)
            if math.prod(values.shape) != found.nnz:
                raise DataError(f"{name} has {values.numel()} values for {found}", "save the model again")
            patterns[key] = found.trusted() if is_trusted else found.validated()
        made[*key, told["values"]] = wrap(patterns[key], values, decoded(told["fill"]))
        yield name, made[*key, told["values"]]


class Mapped:
    """The arrays of a file as views of its mapped memory; unread pages occupy no memory.

    Args:
        path: path of a safetensors file, not written while mapped.

    Raises:
        DataError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = safe_open(path, "pt")
        except (OSError, SafetensorError) as error:
            raise DataError(f"cannot read {path}: {error}", "copy it again or save the model again") from None
        self.known: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        """The array of a name; equal names return the same array.

        Raises:
            DataError: the file has no array of the name.
        """
        if name not in self.known:
            try:
                found: Tensor = self.file.get_tensor(name)  # type: ignore[no-untyped-call]
            except SafetensorError as error:
                raise DataError(f"{self.path} lacks an array: {error}", "save the model again") from None
            self.known[name] = found
        return self.known[name]
