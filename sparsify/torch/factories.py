"""torch's factories with `format=`: torch's own tensor by default, a `SparseTensor` for a given format.

In: `eye(10**6, format="csr")`. Out: a `SparseTensor` with 10**6 stored entries.

`zeros`, `empty` and `eye` never materialize the dense tensor; all other factories do, and drop entries equal to 0.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from sparsify.errors import DtypeError, FormatError, ShapeError

if TYPE_CHECKING:
    from sparsify.storage.format import Format

    Formatted = Format | str

Factory = Callable[..., Any]

DENSE_FIRST: Final = (
    "asarray",
    "from_numpy",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "arange",
    "linspace",
    "logspace",
    "complex",
    "polar",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
)
"""Factories whose dense tensor is made first: its zeros are not stored."""

LAYOUTS: Final = {
    "sparse_coo_tensor": "coo",
    "sparse_csr_tensor": None,
    "sparse_csc_tensor": None,
    "sparse_bsr_tensor": None,
    "sparse_bsc_tensor": None,
    "sparse_compressed_tensor": None,
}
"""Factories of torch's sparse layouts and the format of their results; `None`: that of the layout."""


def in_format(dense: Tensor, format: "Formatted", requires_grad: bool = False) -> Tensor:
    """A tensor in a format; an autograd leaf if `requires_grad`."""
    from sparsify.storage.interop.tensors import tensor

    made: Tensor = tensor(dense, format, duplicates="sum")
    return made.detach().requires_grad_() if requires_grad else made


def dense_first(factory: Factory) -> Factory:
    """A factory of torch with an additional `format=`."""

    @wraps(factory)
    def make(*args: Any, format: "Formatted | None" = None, **kwargs: Any) -> Tensor:
        if format is None:
            made: Tensor = factory(*args, **kwargs)
            return made
        requires_grad = _own_options(factory.__name__, kwargs)
        return in_format(factory(*args, **kwargs), format, requires_grad)

    make.__doc__ = (
        f"`torch.{factory.__name__}`; with `format=` a `SparseTensor` of its entries that differ from 0."
    )
    return make


def of_data(factory: Factory) -> Factory:
    """`tensor` and `as_tensor`, also for sparse data if a format is given; `tensor` copies."""

    @wraps(factory)
    def make(data: Any, *args: Any, format: "Formatted | None" = None, **kwargs: Any) -> Tensor:
        if format is None:
            made: Tensor = factory(data, *args, **kwargs)
            return made
        requires_grad = _own_options(factory.__name__, kwargs)
        if factory.__name__ == "tensor" and isinstance(data, Tensor):
            data = data.detach().clone()
        if not isinstance(data, Tensor) and not _is_scipys(data):
            data = factory(data, *args, **kwargs)
        dtype = kwargs.get("dtype")
        found = in_format(data, format, requires_grad and dtype is None)
        return found if dtype is None else found.to(dtype).requires_grad_(requires_grad)

    make.__doc__ = f"`torch.{factory.__name__}`; with `format=` a `SparseTensor` of dense or sparse data."
    return make


def of_layout(factory: Factory, default: str | None) -> Factory:
    """A factory of a sparse layout of torch that returns `SparseTensor`s; repeated coordinates are added."""

    @wraps(factory)
    def make(*args: Any, format: "Formatted | None" = default, **kwargs: Any) -> Tensor:
        from sparsify.storage.interop.tensors import tensor

        requires_grad = bool(kwargs.pop("requires_grad", False))
        kwargs.setdefault("check_invariants", False)  # checked on conversion
        found = tensor(factory(*args, **kwargs), None, duplicates="sum")
        hybrid = format == "coo" and not found.format.is_short
        if format is not None and not hybrid and format != default:
            found = found.to(format=format)
        return found.detach().requires_grad_() if requires_grad else found

    make.__doc__ = f"`torch.{factory.__name__}` as a `SparseTensor`; repeated coordinates are added."
    return make


def zeros(*size: Any, format: "Formatted | None" = None, **kwargs: Any) -> Tensor:
    """`torch.zeros`; with `format=` a `SparseTensor` without stored entries.

    >>> zeros(2, 3, format="csr").nnz
    0
    """
    return _nothing_stored(torch.zeros, size, format, kwargs)


def empty(*size: Any, format: "Formatted | None" = None, **kwargs: Any) -> Tensor:
    """`torch.empty`; with `format=` a `SparseTensor` without stored entries."""
    return _nothing_stored(torch.empty, size, format, kwargs)


def _nothing_stored(
    factory: Factory, size: tuple[Any, ...], format: "Formatted | None", kwargs: dict[str, Any]
) -> Tensor:
    """A tensor of zeros; in a format, never materialized densely."""
    if format is None:
        made: Tensor = factory(*size, **kwargs)
        return made
    requires_grad = _own_options(factory.__name__, kwargs)
    given = (*size, kwargs.pop("size")) if "size" in kwargs else size
    if not given:
        asked = f"{factory.__name__}(format={str(format)!r})"
        raise ShapeError(f"{asked} has no size", f"extents, {factory.__name__}(3, 4, format={str(format)!r})")
    is_one = len(given) == 1 and isinstance(given[0], Sequence) and not isinstance(given[0], str)
    shape = given[0] if is_one else given
    dtype = _dtype(factory.__name__, kwargs)
    if not shape:
        return in_format(torch.zeros((), dtype=dtype), format, requires_grad)
    coordinates = torch.zeros(len(shape), 0, dtype=torch.int64)
    return _stored((coordinates, torch.zeros(0, dtype=dtype), tuple(shape)), format, requires_grad)


def eye(n: int, m: int | None = None, *, format: "Formatted | None" = None, **kwargs: Any) -> Tensor:
    """`torch.eye`; with `format=` a `SparseTensor` with the diagonal as the only stored entries.

    Args:
        n: number of rows.
        m: number of columns, by default `n`.
        format: format of the result, `"csr"`; dense by default.

    >>> eye(3, format="csr").nnz
    3
    """
    columns = n if m is None else m
    if format is None:
        return torch.eye(n, columns, **kwargs)
    requires_grad = _own_options("eye", kwargs)
    if n < 0 or columns < 0:
        raise ShapeError(f"eye of {n} by {columns}; extents of 0 or more")
    places = torch.arange(min(n, columns))
    values = torch.ones(places.shape[0], dtype=_dtype("eye", kwargs))
    return _stored((places.expand(2, -1), values, (n, columns)), format, requires_grad)


def _stored(data: tuple[Tensor, Tensor, tuple[int, ...]], format: "Formatted", requires_grad: bool) -> Tensor:
    """The tensor of coordinates and values in a format."""
    from sparsify.storage.interop.tensors import tensor

    made = tensor(data, format)
    return made.requires_grad_() if requires_grad else made


def _dtype(name: str, kwargs: dict[str, Any]) -> torch.dtype:
    """The requested dtype; refuses arguments without meaning for a `SparseTensor`."""
    dtype = kwargs.pop("dtype", None)
    kwargs.pop("device", None)
    if kwargs:
        raise FormatError(f"{name} with {', '.join(kwargs)} and a format", "dtype and requires_grad alone")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise DtypeError(f"dtype={dtype!r} of {name}", "a torch.dtype")
    return dtype if dtype is not None else torch.get_default_dtype()


def _own_options(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether the result requires gradients; refuses options in contradiction to a format."""
    if kwargs.get("out") is not None:
        raise FormatError(f"{name} with out= and a format", "the result in the place of out=")
    layout = kwargs.pop("layout", None)
    if layout not in (None, torch.strided):
        raise FormatError(f"{name} with layout={layout} and a format", "one of the two")
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        raise FormatError(f"{name} on {device} in a format", "the CPU, where SparseTensors are")
    return bool(kwargs.pop("requires_grad", False))


def _is_scipys(data: Any) -> bool:
    """Whether data is a sparse array of scipy."""
    from sparsify.storage.interop import scipy_arrays

    return scipy_arrays.is_sparse(data)


FACTORIES: Final[dict[str, Factory]] = {
    **{name: dense_first(getattr(torch, name)) for name in DENSE_FIRST},
    **{name: of_data(getattr(torch, name)) for name in ("tensor", "as_tensor")},
    **{name: of_layout(getattr(torch, name), default) for name, default in LAYOUTS.items()},
    "zeros": zeros,
    "empty": empty,
    "eye": eye,
}
"""The factories of the namespace by name."""
