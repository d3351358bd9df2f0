"""The parameters read as operands by a model's products, found by one call.

In: `nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2))` and a call. Out: `{"2.weight"}`.

Fake tensors replace the inputs where the model allows that, so that products cost nothing; tensors that depend on no
input, such as tables that the model keeps for later calls, are computed. Every operator of the call is observed: a
tensor derived from parameters alone, by slices, casts and sums, has these parameters as origins; a product with such an
operand reads them, and so does an operator of another library. Rows looked up by an embedding are no operands.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.passes.capture.draft import kept_buffers
from sparsify.passes.capture.shell import shared_copy
from sparsify.runtime import confined
from sparsify.runtime.locks import CAPTURES

# Number of leading arguments before the operands of a product (the summand), by name without leading underscores.
PRODUCTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm", "sparse_addmm", "addmm_activation"), 1),
    **dict.fromkeys(
        ("mm", "mv", "bmm", "matmul", "linear", "dot", "trilinear", "sparse_mm", "int_mm", "grouped_mm"), 0
    ),
    **dict.fromkeys(("convolution", "thnn_conv2d", "slow_conv2d_forward", "slow_conv3d"), 0),
    **dict.fromkeys(("mkldnn_convolution", "conv_depthwise3d", "conv_depthwise2d"), 0),
    **dict.fromkeys(("mkldnn_linear", "mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu"), 0),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 0
    ),
}
LOOKUPS: Final = (
    "embedding",
    "embedding_bag",
    "embedding_bag_forward_only",
    "index",
    "index_select",
    "gather",
    "take",
)
# Number of modes of the operands of products.
MATRIX: Final = 2


class Watch(TorchDispatchMode):
    """Records the parameters read by products.

    Args:
        model: model with the known parameters and buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: set[str] = set()
        self.origins: Any = WeakTensorKeyDictionary()
        self.stored: dict[int, frozenset[str]] = {}  # parameters also reach operators as `weight.data`
        self.unknown: dict[int, Tensor] = {}  # tensors with results of fake tensors, by address
        for buffer in model.buffers():
            self.origins[buffer] = frozenset()
        for name, parameter in model.named_parameters():
            self.origins[parameter] = frozenset([name] if parameter.dim() >= MATRIX else [])
            if parameter.layout is torch.strided and parameter.numel():
                self.stored[parameter.untyped_storage().data_ptr()] = self.origins[parameter]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_fake = any(isinstance(tensor, FakeTensor) or self.is_unknown(tensor) for tensor in tensors)
        if is_fake:
            self.unknown |= {tensor.untyped_storage().data_ptr(): tensor for tensor in _written(func, args)}
        with nullcontext() if is_fake else unset_fake_temporarily():
            result = func(*args, **(kwargs or {}))
        origins = [self.origin(tensor) for tensor in tensors]
        if name in PRODUCTS or func.namespace not in ("aten", "prims"):
            self.read |= frozenset().union(*(derived or () for derived in origins[PRODUCTS.get(name, 0) :]))
        if name not in LOOKUPS and None not in origins:
            derived = frozenset(name for names in origins for name in names or ())
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.origins[leaf] = derived
        elif name not in LOOKUPS:
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor) and any(leaf is tensor for tensor in tensors):
                    self.origins.pop(leaf, None)  # overwritten with values that depend on inputs
        return result

    def origin(self, tensor: Tensor) -> frozenset[str] | None:
        """The parameters from which a tensor is derived; None for a tensor that also depends on inputs."""
        names: frozenset[str] | None = self.origins.get(tensor)
        if self.is_unknown(tensor):
            return None
        if names is None and _has_entries(tensor):
            return self.stored.get(tensor.untyped_storage().data_ptr())
        return names

    def is_unknown(self, tensor: Tensor) -> bool:
        """Whether results of fake tensors were written to a tensor, or to another part of its memory."""
        return (
            bool(self.unknown)
            and _has_entries(tensor)
            and tensor.untyped_storage().data_ptr() in self.unknown
        )


def _has_entries(tensor: Tensor) -> bool:
    """Whether a tensor has entries in memory."""
    return tensor.layout is torch.strided and not isinstance(tensor, FakeTensor) and tensor.numel() > 0


def product_weights(
    model: nn.Module, run: Callable[[nn.Module], Any], *, can_copy: bool = True
) -> frozenset[str] | None:
    """The names of parameters with two modes or more read by products; None if the call fails.

    Args:
        model: the model, which keeps its buffers.
        run: function that calls a model.
        can_copy: whether `run` accepts a copy of the model, which fake tensors may enter.
    """
    if can_copy:
        # Entries are read, modules cannot be copied, an operator has no fake version.
        with suppress(Exception):
            copied, fake = shared_copy(model), FakeTensorMode(allow_non_fake_inputs=True)
            _take_fake_inputs(copied, fake)
            with confined.silenced([fake_tensor.__name__]):
                return observed(copied, run, fake)
    try:
        return observed(model, run, nullcontext())
    except Exception:  # the model may raise anything: a later capture runs it again and reports the error
        return None


def _written(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors with entries to which an operator writes."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        is_target = argument.alias_info is not None and argument.alias_info.is_write
        if is_target and isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            yield value


def _take_fake_inputs(model: nn.Module, fake: FakeTensorMode) -> None:
    """Replaces the tensors of each call of `model` by fake tensors."""

    def replace(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(Tensor, fake.from_tensor, (args, kwargs))

    model.register_forward_pre_hook(replace, prepend=True, with_kwargs=True)


def observed(
    model: nn.Module, run: Callable[[nn.Module], Any], within: AbstractContextManager[Any]
) -> frozenset[str]:
    """The names of parameters read by products in a call within a context."""
    watch = Watch(model)
    with torch.inference_mode(False), torch.no_grad(), kept_buffers(model), ExitStack() as stack:
        stack.enter_context(spelled_attention())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(within)
        stack.enter_context(watch)
        run(model)
    return frozenset(watch.read)


@contextmanager
def spelled_attention() -> Iterator[None]:
    """A context in which torch's encoder layers run as separate operators, with visible products.

    The fused operator of a whole layer shows no products. The switch is global to the process, so one thread at a time
    enters the context.
    """
    with CAPTURES:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
