"""Products of other libraries in place of a region's kernel: a linear layer whose weight a library packs once.

In: the nodes of `%y = relu(linear(%x, %w, %b))`. Out: a module of the same inputs that runs
`onednn(%x, %w, %b, "relu")`, which packs W at its first call and again when W was written to.

The dense weight stays, for gradients, states and whatever else reads it; the packed one lies beside it.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx
from torch.nn.functional import linear

from sparsify.passes.graph.operators import operator_name
from sparsify.passes.operands.content_memo import Memo
from sparsify.storage.own_memory import PLAIN


class Product:
    """`linear(x, weight, bias)` by a library that packs the weight.

    Args:
        activation: what follows in the same call, "none", "relu" or "gelu".
        algorithm: of gelu, "none" or "tanh".
    """

    activations: tuple[str, ...] = ()

    def __init__(self, activation: str = "none", algorithm: str = "") -> None:
        self.activation, self.algorithm = activation, algorithm
        self.memory: Memo[Any] = Memo(are_weights=True)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product; torch's where the library has none for such operands."""
        operands = (x, weight) if bias is None else (x, weight, bias)
        for operand in operands:
            if operand.dtype is not torch.float32 or type(operand) not in PLAIN or not operand.is_cpu:
                return self.plain(x, weight, bias)
        if x.numel() == 0:
            return self.plain(x, weight, bias)
        return self.multiplied(x.contiguous(), self.packed(weight), bias)

    def plain(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same by torch."""
        result = linear(x, weight, bias)
        if self.activation == "relu":
            return torch.relu(result)
        return (
            result
            if self.activation == "none"
            else torch.nn.functional.gelu(result, approximate=self.algorithm)
        )

    def packed(self, weight: torch.Tensor) -> Any:
        """The packed weight, made now where it is new or was written to."""

        def make() -> Any:
            with torch.inference_mode(False), torch.no_grad():
                return self.pack(weight.detach())

        return self.memory.get((weight,), make)

    def pack(self, weight: torch.Tensor) -> Any:
        """The weight as the library wants it."""
        raise AssertionError("each library packs in its own way")

    def multiplied(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the packed weight."""
        raise AssertionError("each library multiplies in its own way")


class OneDnn(Product):
    """oneDNN's product with a dense weight in blocks of its own."""

    activations = ("relu", "gelu")

    def pack(self, weight: torch.Tensor) -> Any:
        """The weight in oneDNN's blocks."""
        return torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiplied(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the packed weight."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, packed, bias, self.activation, [], self.algorithm
        )
        return found


class TorchSparse(Product):
    """torch's product with a weight in CSR, by MKL where torch has it."""

    def pack(self, weight: torch.Tensor) -> Any:
        """The weight in CSR."""
        with warnings.catch_warnings():  # about the state of torch's own layout
            warnings.simplefilter("ignore", UserWarning)
            return weight.to_sparse_csr()

    def multiplied(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the packed weight."""
        rows = x.reshape(-1, x.shape[-1])
        found = (packed @ rows.t()).t()
        if bias is not None:
            found = found + bias
        result: torch.Tensor = found.reshape(*x.shape[:-1], packed.shape[0]).contiguous()
        return result


# By the names of `compile: backends`.
LIBRARIES: Final[dict[str, type[Product]]] = {"onednn": OneDnn, "torch_sparse": TorchSparse}
# Those that multiply with dense weights.
DENSE: Final = ("onednn",)
SPOKEN: Final = {"onednn": "oneDNN", "torch_sparse": "torch's CSR"}


def by_library(module: fx.GraphModule, name: str) -> Callable[..., torch.Tensor] | None:
    """The nodes of a region, which this changes, with a library's product; `None` where there is not one product."""
    products = [node for node in module.graph.nodes if operator_name(node) == "linear"]
    if len(products) != 1 or products[0].kwargs:
        return None
    (node,) = products
    activation, algorithm = absorbed(node, LIBRARIES[name].activations)
    node.op, node.target = "call_function", LIBRARIES[name](activation, algorithm).__call__
    output = module.graph.output_node()
    output.args = (output.all_input_nodes[0],)
    module.recompile()
    forward: Callable[..., torch.Tensor] = module.forward
    return forward


def absorbed(node: fx.Node, known: tuple[str, ...]) -> tuple[str, str]:
    """The activation after a product that the library computes with it; its node is gone then."""
    user = next(iter(node.users), None)
    if user is None or len(node.users) > 1 or operator_name(user) not in known:
        return "none", ""
    name = operator_name(user)
    algorithm = str(user.kwargs.get("approximate", "none")) if name == "gelu" else ""
    user.replace_all_uses_with(node)
    user.graph.erase_node(user)
    return name, algorithm
