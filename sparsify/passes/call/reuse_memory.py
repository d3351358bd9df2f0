"""Large results of torch's own operators in recycled memory, planned for the shapes of each call.

In: `%a = linear(%x, %w, %b); %y = gelu(%a)`, inputs of 1,024 rows. Out: for calls of these shapes functions that write
`a` into memory of the pool, and `y` over `a`, which nothing else reads.

The first call of some shapes runs as it is and notes what is large; calls of the same shapes follow the plan. What the
plan does not foresee takes torch's own way and costs time alone: gradients, transforms, modes that look on, and
arguments unlike those that were noted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sparsify.runtime.buffers import POOL
from sparsify.storage import transformed

aten: Final = torch.ops.aten
Call = Callable[..., Any]
# Shapes of inputs that have a plan at a time.
MOST_PLANS: Final = 64
PLAIN: Final = (Tensor, torch.nn.Parameter)


def linear_into(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> Tensor:
    """`linear`, by the product that torch computes it with."""
    rows, result = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight.t(), out=result)
    else:
        torch.addmm(bias, rows, weight.t(), out=result)
    return out


def relu_into(x: Tensor, *, out: Tensor) -> Tensor:
    """`relu`, which torch computes so too."""
    return torch.clamp_min(x, 0, out=out)


# What reads and writes entry by entry: its result may lie where an operand lay.
ENTRYWISE: Final[dict[Any, Call]] = {
    aten.relu.default: relu_into,
    aten.gelu.default: aten.gelu.out,
    aten.silu.default: aten.silu.out,
    aten.sigmoid.default: aten.sigmoid.out,
    aten.tanh.default: aten.tanh.out,
    aten.hardswish.default: aten.hardswish.out,
    aten.leaky_relu.default: aten.leaky_relu.out,
    aten.elu.default: aten.elu.out,
    aten.exp.default: aten.exp.out,
    aten.neg.default: aten.neg.out,
    aten.sqrt.default: aten.sqrt.out,
    aten.rsqrt.default: aten.rsqrt.out,
    aten.add.Tensor: aten.add.out,
    aten.sub.Tensor: aten.sub.out,
    aten.mul.Tensor: aten.mul.out,
    aten.div.Tensor: aten.div.out,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Scalar_out,
}
# What needs memory of its own. Of other operators torch copies the result into `out`, which gains nothing.
INTO: Final[dict[Any, Call]] = ENTRYWISE | {
    aten.linear.default: linear_into,
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.matmul.default: aten.matmul.out,
    aten.softmax.int: aten.softmax.int_out,
    aten.index_select.default: aten.index_select.out,
    aten.cat.default: aten.cat.out,
}


@dataclass(frozen=True, slots=True)
class Noted:
    """A large result: for arguments like these it has this shape and dtype."""

    signature: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def fits(self, memory: Any) -> bool:
        """Whether the result may take the memory of a tensor."""
        return is_placed(memory) and memory.shape == self.shape and memory.dtype == self.dtype


class Site:
    """An operator of a graph, in the place of its call.

    Attributes:
        plain: the operator.
        into: the same with `out=`.
        spent: the position of an operand that nothing else reads, whose memory the result may take; -1 for none.
    """

    def __init__(self, node: fx.Node, spent: int) -> None:
        self.__name__ = node.name  # in the generated code
        self.plain: Any = node.target
        self.into, self.spent = INTO[node.target], spent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The operator's result."""
        return self.plain(*args, **kwargs)

    def noting(self, large: dict["Site", Noted]) -> Call:
        """The operator; notes a large result."""

        def call(*args: Any, **kwargs: Any) -> Any:
            made = self.plain(*args, **kwargs)
            signature = signature_of(args)
            if signature is not None and is_placed(made) and POOL.is_recycled(made.nbytes):
                large[self] = Noted(signature, tuple(made.shape), made.dtype)
            return made

        return call

    def planned(self, noted: Noted) -> Call:
        """The operator with its result in recycled memory, where the arguments are as noted."""
        make = POOL.maker(noted.shape, noted.dtype)

        def call(*args: Any, **kwargs: Any) -> Any:
            if signature_of(args) != noted.signature or not is_unwatched():
                return self.plain(*args, **kwargs)
            spent = args[self.spent] if self.spent >= 0 else None
            return self.into(*args, **kwargs, out=spent if noted.fits(spent) else make())

        return call


def sites(graph: fx.Graph) -> dict[fx.Node, Site]:
    """The nodes of a graph whose results may be placed."""
    return {
        node: Site(node, spent_operand(node))
        for node in graph.nodes
        if node.target in INTO and not any(isinstance(value, fx.Node) for value in node.kwargs.values())
    }


def spent_operand(node: fx.Node) -> int:
    """The position of an operand that a node may write over; -1 for none.

    An operator above made it, so it lies in memory of its own, and nothing else reads it, so there is no view of it.
    """
    if node.target not in ENTRYWISE:
        return -1
    spent = [
        position
        for position, operand in enumerate(node.args)
        if isinstance(operand, fx.Node) and operand.target in INTO and len(operand.users) == 1
    ]
    return spent[0] if spent else -1


def signature_of(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """What the shape and dtype of a result follow from; `None` for arguments that are no plain tensors."""
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, Tensor):
            if type(arg) not in PLAIN or arg.layout is not torch.strided or arg.device.type != "cpu":
                return None
            found += arg.shape, arg.dtype
        elif isinstance(arg, list | tuple) and any(isinstance(part, Tensor) for part in arg):
            inner = signature_of(arg)
            if inner is None:
                return None
            found.append(inner)
        else:
            found.append(type(arg))
    return tuple(found)


def is_placed(value: Any) -> bool:
    """Whether a result lies in memory as one of the pool would."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not value.is_conj()
        and not value.is_neg()
    )


def is_unwatched() -> bool:
    """Whether nothing but this call knows the tensors of it: no gradients, no transforms, no modes."""
    return not torch.is_grad_enabled() and is_unseen()


def is_unseen() -> bool:
    """Whether no transform and no mode sees what is computed."""
    if transformed.are_active() or forward_ad._current_level >= 0:
        return False
    modes = torch._C._len_torch_dispatch_stack()
    return modes == 0 or all(getattr(m, "only_looks", False) for m in _get_current_dispatch_mode_stack())


class Plans:
    """The functions of one graph for the shapes of its inputs; several threads may ask at once.

    Args:
        compile: makes the function from what takes the place of sites.
        sites: of the graph.
        plain: the function as it is.
    """

    def __init__(
        self, compile: Callable[[dict[Site, Call]], Call], sites: Sequence[Site], plain: Call
    ) -> None:
        self.compile, self.sites, self.plain = compile, tuple(sites), plain
        self.known: dict[Any, Call] = {}

    def __call__(self, inputs: Sequence[Any]) -> Call:
        """The function for inputs of these shapes; the first call of new ones notes what is large."""
        shapes = tuple([value.shape for value in inputs])
        found = self.known.get(shapes)
        if found is not None:
            return found
        if not is_unwatched():
            return self.plain
        large: dict[Site, Noted] = {}
        noting = self.compile({site: site.noting(large) for site in self.sites})

        def first(*values: Any) -> Any:
            result = noting(*values)
            if len(self.known) >= MOST_PLANS:
                self.known.clear()
            planned = {site: site.planned(noted) for site, noted in large.items()}
            self.known[shapes] = self.compile(planned) if planned else self.plain
            return result

        return first
