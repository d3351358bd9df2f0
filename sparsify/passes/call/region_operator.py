"""The call of a region as one operator of a traced graph.

In: `call_region(handle, x, edge_index, 2708, w, b)`. Out: the region's result, differentiable.

Eager calls run the kernel directly. Under tracing, compilation or export the same call is the operator
`torch.ops.sparsify.region(handle, tensors, sizes, places, packed)`, which returns a list with ordinary shapes:
conversions stay inside. `call_results` is for regions with several results. Below the dispatch of sparse tensors,
`tensors` holds the parts of packed weights too, described by `packed`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.kernel.tracing import Parts
from sparsify.compiler.kernel.transforms import torch_operators
from sparsify.passes.call.first_backward import Result, listed
from sparsify.passes.call.region_call import entries, find
from sparsify.passes.call.tracing import is_traced
from sparsify.storage.subclass import dispatch
from sparsify.storage.tensor import SparseTensor, wrap

_exported: dict[int, Any] = {}
# Start of a packed weight's parts among the tensors, the structure of the parts, and the weight's shape.
Place = tuple[int, Parts, tuple[int, ...]]


def call_region(handle: int, *arguments: Any) -> Result:
    """The result of the region `handle` for its arguments, tensors and sizes."""
    found = call_results(handle, *arguments)
    return found[0] if isinstance(found, list) else found


def call_results(handle: int, *arguments: Any) -> Result | list[torch.Tensor]:
    """The results of the region `handle`, in a tuple or list if several."""
    if torch.compiler.is_compiling() and is_traced():
        # Dynamo, the tracer of strict exports, cannot look a region up: the handle stays.
        if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
            whole = find(handle).portable(arguments)
            if whole is not None:
                return list(listed(whole))
        traced: list[torch.Tensor] = torch.ops.sparsify.region(handle, *parted(arguments), "")
        return traced
    found: Result = find(handle)(*arguments)
    return found


def is_call(node: fx.Node) -> bool:
    """Whether a node calls a region."""
    return node.target is call_region or node.target is call_results


def parted(arguments: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any], list[int]]:
    """The tensors among arguments, the sizes, and the positions of the sizes."""
    places = [place for place, argument in enumerate(arguments) if not isinstance(argument, torch.Tensor)]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return tensors, [arguments[place] for place in places], places


@cache
def places_in(packed: str) -> tuple[Place, ...]:
    """The packed weights of a traced call, parsed from their text."""
    return tuple(serialize.read(packed, {**serialize.CLASSES, "Parts": Parts})) if packed else ()


def together(tensors: Sequence[torch.Tensor], packed: str) -> dict[int, torch.Tensor]:
    """The tensors by position, with each packed weight assembled at the position of its values."""
    found = dict(enumerate(tensors))
    for first, parts, shape in places_in(packed):
        found[first] = parts.together(iter(tensors[first:]), shape)
        for at in range(first + 1, first + parts.count):
            del found[at]
    return found


def apart(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int], str]:
    """The tensors with sparse ones replaced by their parts, first positions, and the text for reassembly."""
    flat: list[torch.Tensor] = []
    firsts: list[int] = []
    packed: list[Place] = []
    for tensor in tensors:
        firsts.append(len(flat))
        if isinstance(tensor, SparseTensor):
            packed.append((len(flat), Parts.of(tensor), tensor._pattern.shape))
            flat += [tensor._vals, *tensor._pattern.arrays_in_place()]
        else:
            flat.append(tensor)
    return flat, firsts, repr(tuple(packed))


def merged(
    tensors: Sequence[torch.Tensor], sizes: Sequence[Any], places: Sequence[int], packed: str
) -> list[Any]:
    """The arguments in order: tensors, with the sizes inserted at their positions."""
    arguments: list[Any] = list(together(tensors, packed).values()) if packed else list(tensors)
    for place, size in zip(places, sizes, strict=True):
        arguments.insert(place, size)
    return arguments


def argument_of(tensors: Sequence[torch.Tensor], places: Sequence[int], packed: str) -> dict[int, int]:
    """The positions among the arguments of the tensors, by theirs."""
    whole = together(tensors, packed)
    positions = (position for position in range(len(whole) + len(places)) if position not in places)
    return dict(zip(whole, positions, strict=True))


def run(
    handle: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int], packed: str
) -> list[torch.Tensor]:
    """The computation of `region`; results are contiguous, as on fake tensors, also those inside padded images."""
    found = listed(find(handle)(*merged(tensors, sizes, places, packed)))
    return [result.contiguous() for result in found]


def shapes_only(
    handle: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int], packed: str
) -> list[torch.Tensor]:
    """`region` on fake tensors."""
    call = find(handle)
    if torch.compiler.is_exporting():
        _exported[handle] = call  # lives as long as exported programs may
    arguments = merged(tensors, sizes, places, packed)
    shapes = call.result_shapes(arguments)
    return [tensors[0].new_empty(s, dtype=dtype) for s, dtype in zip(shapes, call.dtypes, strict=True)]


def run_backward(
    handle: int, gradients: list[torch.Tensor | None], results: list[torch.Tensor | None],
    tensors: list[torch.Tensor], sizes: list[int], places: list[int], needed: list[int], packed: str,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of the tensors at the positions `needed`, from the results' gradients; `None` for zeros.

    `results` holds the results read by gradients, `None` for the others.
    """
    arguments = merged(tensors, sizes, places, packed)
    position_of = argument_of(tensors, places, packed)
    found = find(handle).gradients(arguments, [position_of[at] for at in needed], results, gradients)
    given = [tensor for tensor in (*gradients, *results, *tensors) if tensor is not None]
    taken = {tensor.untyped_storage().data_ptr() for tensor in given}
    pulled = []
    for at, value in zip(needed, found, strict=True):
        own = torch.zeros_like(tensors[at]) if value is None else entries(value).contiguous()
        if own.untyped_storage().data_ptr() in taken:
            own = own.clone()  # an operator's results share no memory with its operands or each other
        taken.add(own.untyped_storage().data_ptr())
        pulled.append(own)
    return pulled


def backward_shapes(
    handle: int, gradients: list[torch.Tensor | None], results: list[torch.Tensor | None],
    tensors: list[torch.Tensor], sizes: list[int], places: list[int], needed: list[int], packed: str,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients on fake tensors."""
    return [torch.empty_like(tensors[position], memory_format=torch.contiguous_format) for position in needed]


def remember(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    """Saves the inputs and results of the backward pass."""
    ctx.count = len(output)
    ctx.set_materialize_grads(False)
    ctx.handle, tensors, ctx.sizes, ctx.places, ctx.packed = inputs
    ctx.needed = [position for position, tensor in enumerate(tensors) if tensor.requires_grad]
    position_of = argument_of(tensors, ctx.places, ctx.packed)
    wanted = tuple([position_of[at] for at in ctx.needed if at in position_of])
    ctx.save_for_backward(*find(ctx.handle).read_of(output, wanted), *tensors)


def backward(
    ctx: Any, given: list[torch.Tensor | None]
) -> tuple[None, list[torch.Tensor | None], Any, Any, None]:
    """The gradients of all arguments."""
    saved = ctx.saved_tensors
    results, tensors = list(saved[: ctx.count]), list(saved[ctx.count :])
    found = torch.ops.sparsify.region_backward(
        ctx.handle, list(given), results, tensors, ctx.sizes, ctx.places, ctx.needed, ctx.packed
    )
    gradients: list[torch.Tensor | None] = [None] * len(tensors)
    for position, value in zip(ctx.needed, found, strict=True):
        gradients[position] = value
    nothing: list[Any] | None = [] if not ctx.places else None  # the empty list is a structure without leaves
    return None, gradients, nothing, nothing, None


def take_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operators on sparse weights, below autograd: the same operators on the weights' parts.

    Gradients of sparse weights have the weights' patterns.
    """
    is_backward = func.overloadpacket is torch.ops.sparsify.region_backward
    given = list(args[: 7 if is_backward else 4])
    at = 3 if is_backward else 1
    tensors = given[at]
    given[at], firsts, packed = apart(tensors)
    if not is_backward:
        return func(*given, packed)
    needed, given[6] = given[6], [firsts[place] for place in given[6]]
    weights = [tensors[place] for place in needed]
    return [
        wrap(weight._pattern, found) if isinstance(weight, SparseTensor) else found
        for weight, found in zip(weights, func(*given, packed), strict=True)
    ]


REGION = "region(int handle, Tensor[] tensors, SymInt[] sizes, int[] places, str packed) -> Tensor[]"
REGION_BACKWARD = (
    "region_backward(int handle, Tensor?[] gradients, Tensor?[] results, Tensor[] tensors, SymInt[] sizes, "
    "int[] places, int[] needed, str packed) -> Tensor[]"
)
_library = torch_operators.register(
    torch_operators.Operator(REGION, run, shapes_only, remember, backward),
    torch_operators.Operator(REGION_BACKWARD, run_backward, backward_shapes),
)
dispatch.HANDLERS[torch.ops.sparsify.region] = take_apart
dispatch.HANDLERS[torch.ops.sparsify.region_backward] = take_apart
