"""Sparse models under `torch.autocast`: computed in float32, with results in autocast's dtypes.

In: `with torch.autocast("cpu", torch.bfloat16): sparse(x)`. Out: the float32 results of kernels, rounded once to
bfloat16. Autocast rounds the operands of some operators of float32 models. Kernels and the remaining operators compute
in full precision instead. The dtypes of the results are read from one call of the source model under autocast.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils import _pytree as pytree

from sparsify.errors import SparsifyError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import kept_buffers
from sparsify.passes.capture.shell import Modes, modes

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

NEEDED: Final = (
    "autocast is for models in float32, and this one or its inputs are not, or its own code needs autocast; the source "
    "model runs"
)
# Maximum number of kinds of calls with memoized dtypes.
MOST: Final = 64
# Autocast leaves float64 unchanged.
EXACT: Final = (torch.float32, torch.float64)
Dtypes = list[torch.dtype | None]


class Autocast:
    """Result dtypes under autocast, memoized by kind of call; None for calls that need autocast to run."""

    def __init__(self) -> None:
        self.dtypes_by_kind: dict[Any, Dtypes | None] = {}

    def kinds(self) -> Iterator[tuple[torch.dtype, Modes, calls.CallShape, Dtypes]]:
        """Autocast's dtype, modes, structure of the call and dtypes of the results of each kind that has them."""
        for key, dtypes in self.dtypes_by_kind.items():
            if len(key) == 3 and dtypes is not None:
                yield *key, dtypes

    def run(self, sparse: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call without autocast, in the dtypes of a call with autocast."""
        key, dtypes, is_new = self.expected(sparse, args, kwargs)
        if dtypes is not None:
            torch.set_autocast_enabled("cpu", False)  # the context manager takes longer than small kernels
            try:
                return converted(sparse.forward(*args, **kwargs), dtypes)
            except SparsifyError:
                raise
            except Exception:  # raised by model code that needs autocast, for example products of two dtypes
                if not is_new:
                    raise
                self.dtypes_by_kind[key] = None
            finally:
                torch.set_autocast_enabled("cpu", True)
        sparse._notices.warn(NEEDED)
        return sparse.original(*args, **kwargs)

    def expected(
        self, sparse: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Dtypes | None, bool]:
        """The kind of a call, the dtypes of its results, and whether the call is the first of its kind."""
        dtype = torch.get_autocast_dtype("cpu")
        read = sparse._call_index.read(args, kwargs)
        quick_key = None if read is None else (dtype, read[0])
        if quick_key in self.dtypes_by_kind:
            return quick_key, self.dtypes_by_kind[quick_key], False
        call = sparse.flattened_call(args, kwargs)
        key = (dtype, modes(sparse), call.shape)
        is_new = key not in self.dtypes_by_kind
        if is_new:
            if len(self.dtypes_by_kind) >= MOST:
                self.dtypes_by_kind.clear()
            self.dtypes_by_kind[key] = (
                dtypes_of(tried(sparse, call)) if is_exact(sparse, call.values) else None
            )
        elif quick_key is not None:  # a kind that ran before
            self.dtypes_by_kind[quick_key] = self.dtypes_by_kind[key]
        return key, self.dtypes_by_kind[key], is_new


def tried(sparse: "SparseModule", call: calls.Call) -> Any:
    """The source model's result for a call, without effects on the model or the arguments."""
    with torch.no_grad(), kept_buffers(sparse._source), torch.random.fork_rng(devices=[]):
        return sparse.run_source(calls.copied(call))


def is_exact(sparse: "SparseModule", values: Sequence[Any]) -> bool:
    """Whether a model and its inputs are float32 or float64, the dtypes that autocast narrows or leaves."""
    packed_forms = sparse._weights.packed_forms
    dtypes = [
        packed_forms[name].dtype if name in packed_forms else p.dtype
        for name, p in sparse._source.named_parameters()
    ]
    tensors = [*sparse._source.buffers(), *(value for value in values if isinstance(value, torch.Tensor))]
    dtypes += [tensor.dtype for tensor in tensors]
    return all(dtype in EXACT for dtype in dtypes if dtype.is_floating_point)


def dtypes_of(result: Any) -> Dtypes:
    """The dtypes of the tensors in a result."""
    leaves = pytree.tree_leaves(result)
    return [leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def converted(result: Any, dtypes: Dtypes) -> Any:
    """A result with its floating tensors cast; unchanged where the number of its tensors differs."""
    if isinstance(result, torch.Tensor):
        return in_dtype(result, dtypes[0]) if len(dtypes) == 1 else result
    leaves, spec = pytree.tree_flatten(result)
    if len(leaves) != len(dtypes):
        return result
    pairs = zip(leaves, dtypes, strict=True)
    return pytree.tree_unflatten([in_dtype(leaf, dtype) for leaf, dtype in pairs], spec)


def in_dtype(leaf: Any, dtype: torch.dtype | None) -> Any:
    """A floating tensor in a dtype; any other value is unchanged."""
    if dtype is None or not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.to(dtype)
