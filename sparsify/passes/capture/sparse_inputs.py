"""Sparse tensors during capture: coordinates and values with the interface of sparse tensors.

In: `torch.sparse.mm(adj, x)` inside a model, `adj` a `CapturedSparse`. Out: in the graph the one pattern known to
lifting, `zeros.index_add(0, rows, values[:, None] * x.index_select(0, columns))`. torch's own sparse tensors cannot be
exported with dynamic shapes or with gradients; triples can.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError
from sparsify.passes.functional.layouts import aten
from sparsify.runtime.confined import substituted

Table = dict[str, Callable[..., Any]]
_EMPTY = torch.empty(0)
# Storage arrays of matrices; during capture known only for layouts with entries listed row by row.
ARRAYS: Final = frozenset({"crow_indices", "col_indices", "indices", "_indices", "values", "_values"})
BY_ROWS: Final = (torch.sparse_coo, torch.sparse_csr)
# Operators supported for tensors with more than two modes; every other operator takes a dense tensor.
OF_ANY_RANK: Final = frozenset(
    (
        *(".layout", ".shape", ".device", ".dtype", ".is_cuda", ".requires_grad", ".is_sparse"),
        *(".is_sparse_csr", ".ndim", "size", "dim", "detach", "to_dense", "is_floating_point"),
    )
)
# Callback for operators that took matrices as dense tensors in a capture.
_written_out: ContextVar[Callable[[str], None]] = ContextVar("written_out")


class CapturedSparse(torch.Tensor):
    """A sparse matrix as coordinates and values, duplicates allowed.

    Exists only during capture. A tensor with more modes has further coordinates between rows and columns.
    """

    rows: torch.Tensor
    between: tuple[torch.Tensor, ...]
    columns: torch.Tensor
    entries: torch.Tensor
    extent: tuple[Any, ...]
    kind: torch.layout
    is_sorted: bool

    @staticmethod
    def build(
        rows: torch.Tensor,
        columns: torch.Tensor,
        entries: torch.Tensor,
        extent: Any,
        kind: torch.layout,
        is_sorted: bool = False,
        between: tuple[torch.Tensor, ...] = (),
    ) -> "CapturedSparse":
        """The matrix of shape `extent` with `entries` at (rows, columns), or the tensor at (rows, .., columns)."""
        matrix: CapturedSparse = torch.Tensor._make_subclass(CapturedSparse, _EMPTY)
        matrix.rows, matrix.columns, matrix.entries = rows, columns, entries
        matrix.extent, matrix.kind, matrix.is_sorted = tuple(extent), kind, is_sorted
        matrix.between = between
        return matrix

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = next((key for key, getter in PROPERTIES.items() if func.__self__ is getter), str(func))
        is_tensor = any(isinstance(arg, CapturedSparse) and arg.between for arg in args)
        try:
            if is_tensor and name not in OF_ANY_RANK:
                raise CaptureError(
                    f"{name} is not known on a sparse input of more than two modes while capturing"
                )
            if name in ARRAYS and args[0].kind not in BY_ROWS:
                raise CaptureError(
                    f"{name} of a sparse input in {args[0].kind} cannot be captured",
                    "an input in torch.sparse_coo or torch.sparse_csr",
                )
            if name in TABLE:
                return TABLE[name](*args, **(kwargs or {}))
        except CaptureError:
            if not is_pointwise_or_sum(name):
                raise
        if not is_pointwise_or_sum(name):
            raise CaptureError(
                f"{name} is not known on a sparse input while capturing",
                f"known are {', '.join(sorted(TABLE))}",
            )
        _written_out.get()(name)
        dense_args, named = pytree.tree_map(written_out, (args, kwargs or {}))
        return func(*dense_args, **named)


def of_kind(matrix: CapturedSparse, kind: torch.layout) -> CapturedSparse:
    """A matrix with its layout named `kind`."""
    return CapturedSparse.build(
        matrix.rows, matrix.columns, matrix.entries, matrix.extent, kind, matrix.is_sorted
    )


def with_entries(matrix: CapturedSparse, entries: torch.Tensor) -> CapturedSparse:
    """A matrix with the coordinates of another one and new values."""
    return CapturedSparse.build(
        matrix.rows, matrix.columns, entries, matrix.extent, matrix.kind, matrix.is_sorted, matrix.between
    )


def transposed(matrix: CapturedSparse, *modes: int) -> CapturedSparse:
    """The matrix with rows and columns exchanged."""
    return CapturedSparse.build(matrix.columns, matrix.rows, matrix.entries, matrix.extent[::-1], matrix.kind)


def size(matrix: CapturedSparse, dim: int | None = None) -> Any:
    """The shape, or the extent of one mode."""
    return torch.Size(matrix.extent) if dim is None else matrix.extent[dim]


def product(left: Any, right: Any, reduce: str = "sum") -> Any:
    """`left @ right` as gather, multiply, scatter; `mean` divides by the stored count as torch does."""
    if any(not isinstance(part, CapturedSparse) and part.dim() > 2 for part in (left, right)):
        raise CaptureError(
            "a product of a sparse input and several matrices is captured as one of dense tensors"
        )
    if not isinstance(left, CapturedSparse):
        return product(transposed(right), left.transpose(0, 1)).transpose(0, 1)
    if isinstance(right, CapturedSparse):
        raise CaptureError(
            "a product of two sparse inputs cannot be captured yet; multiply them outside the model"
        )
    vector = right.dim() == 1
    dense = right.unsqueeze(1) if vector else right
    if left.extent[1] != dense.size(0):  # same check as torch's operator: the extents are equal from here on
        raise RuntimeError(f"matrices of {list(left.extent)} and {list(right.shape)} have no product")
    messages = left.entries.unsqueeze(1) * dense.index_select(0, left.columns)
    zeros = messages.new_zeros((left.extent[0], dense.size(1)))
    result = zeros.index_add(0, left.rows, messages)
    if reduce == "mean":
        ones = torch.ones_like(left.entries)
        count = left.entries.new_zeros((left.extent[0],)).index_add(0, left.rows, ones)
        result = result / count.clamp(min=1).unsqueeze(1)
    elif reduce not in ("sum", "add"):
        raise CaptureError(f"torch.sparse.mm(reduce={reduce!r}) cannot be captured yet; sum and mean can")
    return result.squeeze(1) if vector else result


def add_product(bias: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * bias + alpha * left @ right`."""
    result = product(left, right)
    result = result if alpha == 1 else result * alpha
    return result + (bias if beta == 1 else bias * beta)


def linear(matrix: CapturedSparse, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """`matrix @ weight.T + bias`."""
    result = product(matrix, weight.t())
    return result if bias is None else result + bias


def scaled(left: Any, right: Any) -> Any:
    """A sparse matrix times a scalar."""
    matrix, factor = (left, right) if isinstance(left, CapturedSparse) else (right, left)
    if isinstance(factor, torch.Tensor) and factor.dim() > 0:
        raise CaptureError("an element-wise product of a sparse input and a tensor cannot be captured yet")
    return with_entries(matrix, matrix.entries * factor)


def positions(matrix: CapturedSparse) -> torch.Tensor:
    """The coordinates as [2, nnz]."""
    return torch.stack([matrix.rows, matrix.columns])


def row_positions(matrix: CapturedSparse) -> torch.Tensor:
    """Start of each row; only matrices from outside the model are sorted by row."""
    if not matrix.is_sorted:
        raise CaptureError("crow_indices of a sparse matrix that the model builds cannot be captured")
    lengths = matrix.rows.new_zeros((matrix.extent[0] + 1,)).index_add(
        0, matrix.rows + 1, torch.ones_like(matrix.rows)
    )
    return lengths.cumsum(0)


def dense(matrix: CapturedSparse, *_: Any) -> torch.Tensor:
    """The matrix as a dense tensor."""
    zeros = matrix.entries.new_zeros(matrix.extent)
    places = (matrix.rows, *matrix.between, matrix.columns)
    return zeros.index_put(places, matrix.entries, accumulate=True)


def written_out(value: Any) -> Any:
    """A captured matrix as a dense tensor, which passes must remove; other values are unchanged."""
    return dense(value) if isinstance(value, CapturedSparse) else value


def is_pointwise_or_sum(name: str) -> bool:
    """Whether an operator gives equal results for sparse and dense matrices; softmax and writes do not."""
    plain = name.strip("_").removeprefix("r")
    is_written = (name.endswith("_") and not name.endswith("__")) or plain in (
        "setitem",
        "iadd",
        "imul",
        "isub",
    )
    is_own = any(part in name for part in ("sparse", "softmax", "indices", "values", "coalesce", "nnz"))
    return not (name.startswith(".") or is_written or is_own)


TABLE: Table = {
    ".layout": lambda m: m.kind,
    ".shape": lambda m: torch.Size(m.extent),
    ".device": lambda m: m.entries.device,
    ".dtype": lambda m: m.entries.dtype,
    ".is_cuda": lambda m: False,
    ".requires_grad": lambda m: m.entries.requires_grad,
    ".is_sparse": lambda m: m.kind is torch.sparse_coo,
    ".is_sparse_csr": lambda m: m.kind is torch.sparse_csr,
    ".ndim": lambda m: len(m.extent),
    ".T": transposed,
    "size": size,
    "dim": lambda m: len(m.extent),
    "is_coalesced": lambda m: True,
    "_coalesced_": lambda m, flag: m,
    "coalesce": lambda m: m,
    "detach": lambda m: with_entries(m, m.entries.detach()),
    "indices": positions,
    "_indices": positions,
    "crow_indices": row_positions,
    "col_indices": lambda m: m.columns,
    "values": lambda m: m.entries,
    "_values": lambda m: m.entries,
    "t": transposed,
    "transpose": transposed,
    "to_sparse": lambda m, *_, **__: of_kind(m, torch.sparse_coo),
    "to_sparse_coo": lambda m: of_kind(m, torch.sparse_coo),
    "to_sparse_csr": lambda m, *_: of_kind(m, torch.sparse_csr),
    "to_dense": dense,
    "mm": product,
    "matmul": product,
    "__matmul__": product,
    "__rmatmul__": lambda m, other: product(other, m),
    "spmm": product,
    "mv": product,
    "_sparse_mm": product,
    "addmm": add_product,
    "_sparse_addmm": add_product,
    "linear": linear,
    "mul": scaled,
    "__mul__": scaled,
    "__rmul__": scaled,
    "is_floating_point": lambda m: m.entries.is_floating_point(),
}


PROPERTIES: Final = {name: getattr(torch.Tensor, name[1:]) for name in TABLE if name.startswith(".")}


class Building(TorchFunctionMode):
    """Replaces sparse tensors built by the model by captured matrices, and dense sparse.mm by plain products."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.sparse_coo_tensor:
            return coordinates_to_matrix(*args, **kwargs)
        if getattr(func, "__name__", "") == "_sparse_mm" and not any(
            isinstance(a, CapturedSparse) for a in args
        ):
            return torch.matmul(*args, **kwargs)  # the sparse operator would fix the shapes
        return func(*args, **kwargs)


def coordinates_to_matrix(
    indices: torch.Tensor, values: torch.Tensor, size: Any = None, **_: Any
) -> CapturedSparse:
    """The result of `torch.sparse_coo_tensor` while capturing."""
    if size is None:
        raise CaptureError("torch.sparse_coo_tensor without `size` cannot be captured; give the size")
    return CapturedSparse.build(indices[0], indices[1], values, size, torch.sparse_coo)


def geometric_matrix(kind: torch.layout) -> Callable[..., Any]:
    """PyG's `to_torch_coo_tensor` and `to_torch_csr_tensor` while capturing; duplicates stay."""

    def build(edge_index: Any, edge_attr: Any = None, size: Any = None, is_coalesced: bool = False) -> Any:
        if edge_attr is None or size is None:
            raise CaptureError("a PyG sparse matrix without values or size cannot be captured; give both")
        extent = size if isinstance(size, tuple | list) else (size, size)
        return CapturedSparse.build(edge_index[0], edge_index[1], edge_attr, extent, kind)

    return build


# PyG functions that branch on the data of a sparse matrix, with their replacements during capture.
REGISTRY: dict[str, Callable[..., Any]] = {
    "to_torch_coo_tensor": geometric_matrix(torch.sparse_coo),
    "to_torch_csr_tensor": geometric_matrix(torch.sparse_csr),
    "to_edge_index": lambda matrix: (positions(matrix), matrix.entries),
    "set_sparse_value": with_entries,
}


@contextmanager
def capturing(written_out: Callable[[str], None]) -> Iterator[None]:
    """A context in which sparse tensors built by the model are captured matrices.

    Args:
        written_out: callback for operators that take matrices as dense tensors, which passes must remove.
    """
    token = _written_out.set(written_out)
    home = sys.modules.get("torch_geometric.utils.sparse")
    modules = [module for name, module in sys.modules.items() if home and name.startswith("torch_geometric.")]
    with ExitStack() as changes:
        changes.callback(_written_out.reset, token)
        for name, stand_in in REGISTRY.items():
            original = getattr(home, name, None)
            for module in modules:
                if original is not None and vars(module).get(name) is original:
                    changes.enter_context(substituted(module, name, stand_in))
        with Building():
            yield


class Contiguous(TorchFunctionMode):
    """A mode that records `contiguous` of contiguous tensors, too, which torch skips otherwise."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.contiguous and not isinstance(args[0], CapturedSparse):
            func = aten.contiguous.default
        return func(*args, **(kwargs or {}))
