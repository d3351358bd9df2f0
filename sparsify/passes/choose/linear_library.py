"""Products of other libraries in place of a region's kernel: linear layers with prepacked weights.

In: the nodes of `%y = relu(linear(%x, %w, %b))`. Out: a module with the same inputs that runs `onednn(%x, %w, %b,
"relu")`, which packs W at its first call and again after writes to W. The dense weight stays, for gradients, states and
other readers, in addition to the packed one.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from sparsify.passes.graph.operators import operator_name
from sparsify.passes.operands.content_memo import Memo
from sparsify.storage.own_memory import PLAIN


@dataclass(frozen=True, slots=True)
class Library:
    """A library with products of prepacked weights.

    Attributes:
        name: name for reports.
        pack: function from a weight to its packed form.
        multiply: `multiply(x, packed, bias, activation, algorithm)`, the product of rows with a packed weight.
        activations: activations fused into the product.
    """

    name: str
    pack: Callable[[Tensor], Any]
    multiply: Callable[[Tensor, Any, Tensor | None, str, str], Tensor]
    activations: tuple[str, ...] = ()


class Product:
    """`linear(x, weight, bias)` by a library.

    Args:
        library: the library.
        activation: activation fused into the call, "none", "relu" or "gelu".
        algorithm: variant of gelu, "none" or "tanh".
    """

    def __init__(self, library: Library, activation: str, algorithm: str) -> None:
        self.library, self.activation, self.algorithm = library, activation, algorithm
        self.memory: Memo[Any] = Memo(are_weights=True)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product; torch's for operands unsupported by the library."""
        operands = (x, weight) if bias is None else (x, weight, bias)
        are_known = all(o.dtype is torch.float32 and type(o) in PLAIN and o.is_cpu for o in operands)
        if not are_known or x.numel() == 0:
            return self.plain(x, weight, bias)
        packed = self.memory.get((weight,), partial(self.packed, weight))
        return self.library.multiply(x.contiguous(), packed, bias, self.activation, self.algorithm)

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product and the activation by torch's operators."""
        result = functional.linear(x, weight, bias)
        if self.activation == "relu":
            return torch.relu(result)
        return result if self.activation == "none" else functional.gelu(result, approximate=self.algorithm)

    def packed(self, weight: Tensor) -> Any:
        """The packed weight, made now."""
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the state of torch's own sparse layout
            return self.library.pack(weight.detach())


def multiply_dense(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str, algorithm: str) -> Tensor:
    """oneDNN's product with a weight in oneDNN's blocks."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, [], algorithm)
    return result


def multiply_csr(x: Tensor, packed: Tensor, bias: Tensor | None, *_: str) -> Tensor:
    """torch's product with a weight in CSR, by MKL if built in."""
    result = (packed @ x.reshape(-1, x.shape[-1]).t()).t()
    result = result if bias is None else result + bias
    return result.reshape(*x.shape[:-1], packed.shape[0]).contiguous()


def pack_dense(weight: Tensor) -> Any:
    """A weight in oneDNN's blocks."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


# By the names of `compile: backends`.
LIBRARIES: Final = {
    "onednn": Library("oneDNN", pack_dense, multiply_dense, ("relu", "gelu")),
    "torch_sparse": Library("torch's CSR", Tensor.to_sparse_csr, multiply_csr),
}
# Libraries with dense weights.
DENSE: Final = ("onednn",)


def by_library(module: fx.GraphModule, name: str) -> Callable[..., Tensor] | None:
    """A region's nodes, changed in place, with a library's product; `None` unless exactly one product exists."""
    products = [node for node in module.graph.nodes if operator_name(node) == "linear"]
    if len(products) != 1 or products[0].kwargs:
        return None
    (node,) = products
    library = LIBRARIES[name]
    product = Product(library, *absorbed(node, library.activations))
    node.op, node.target = "call_function", product.__call__
    output = module.graph.output_node()
    output.args = (output.all_input_nodes[0],)
    module.recompile()
    forward: Callable[..., Tensor] = module.forward
    return forward


def absorbed(node: fx.Node, fusible: tuple[str, ...]) -> tuple[str, str]:
    """The activation after a product, if fused by the library; the activation node is removed."""
    user = next(iter(node.users), None)
    if user is None or len(node.users) > 1 or operator_name(user) not in fusible:
        return "none", ""
    name = operator_name(user)
    algorithm = str(user.kwargs.get("approximate", "none")) if name == "gelu" else ""
    user.replace_all_uses_with(node)
    user.graph.erase_node(user)
    return name, algorithm
