"""Dense fallbacks of operators without a kernel: the dense result and one warning, or an error under strict.

In: `torch.cumsum(A, 0)`. Out: `torch.cumsum(A.to_dense(), 0)` and one warning naming the operator and the remedy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor
from torch.overrides import resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from sparsify.errors import SparsifyError, UnsupportedOperatorError
from sparsify.ops.register.memory import check_bytes, dense_bytes, tensors_in
from sparsify.options import current
from sparsify.storage import tensor
from sparsify.storage.tensor import Operator, SparseTensor
from sparsify.warn import warn

# Functions that write, or concern the memory of the tensor itself: a dense copy would be wrong.
KEPT: Final = frozenset(
    {
        *("__get__", "__set__", "__delete__", "__setitem__", "__dlpack__", "__dlpack_device__"),
        *(
            "backward",
            "to",
            "cuda",
            "cpu",
            "type",
            "untyped_storage",
            "set_",
            "new",
            "pin_memory",
            "as_strided",
        ),
    }
)

_warned: set[str] = set()


def run_densely(
    function: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], reason: SparsifyError
) -> Any:
    """The operator on dense copies of its sparse operands; differentiable.

    Raises:
        UnsupportedOperatorError: under `sparsify.strict()`, and for operators writing into a sparse tensor.
        DenseSizeError: the dense copies would be out of proportion to the stored entries.
    """
    name = name_of(function)
    text = str(reason)
    text = text if text.startswith(name) else f"{name}: {text}"
    if current().strict or not _has_dense_meaning(function, kwargs):
        raise UnsupportedOperatorError(text) from None
    operands = tensors_in((args, kwargs))
    check_bytes(name, dense_bytes(operands), operands)
    if name not in _warned:
        _warned.add(name)
        warn(
            f"{text}; its sparse operands become dense, here and from now on without a warning. "
            "sparsify.strict() makes this an error"
        )
    dense_args, dense_kwargs = tree_map(_dense, (list(args), dict(kwargs)))
    return function(*dense_args, **dense_kwargs)


def name_of(function: Operator) -> str:
    """The user-facing name of an operator, `torch.matmul`."""
    return str(resolve_name(function) or getattr(function, "__name__", function))


@contextmanager
def forgotten() -> Iterator[None]:
    """Context manager: every operator warns anew."""
    before = set(_warned)
    _warned.clear()
    try:
        yield
    finally:
        _warned.update(before)


def _dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, SparseTensor) else value


def _has_dense_meaning(function: Operator, kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator returns a new result and leaves its operands unchanged."""
    name = getattr(function, "__name__", "")
    writes = name.endswith("_") and not name.endswith("__")
    into = any(isinstance(value, SparseTensor) for value in tree_leaves(kwargs.get("out")))
    return not (writes or into or name in KEPT or bool(kwargs.get("inplace")))


def is_dense(value: object) -> bool:
    """Whether a value is an ordinary tensor of torch."""
    return isinstance(value, Tensor) and not isinstance(value, SparseTensor)


tensor.unsupported.append(run_densely)
