"""The call of a region: finds its operands, runs its kernel, and is one operator for torch.compile.

In: `call_region(handle, x, edge_index, 2708, w, b)`. Out: the region's result, differentiable.

Eager calls go straight to the kernel. While tracing, compiling or exporting the same call is the operator
`torch.ops.sparsify.region(handle, tensors, sizes)`, whose shapes are ordinary: conversions stay inside of it.
"""

import secrets
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import torch_operator
from sparsify.compiler.differentiate import pull_back
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel import plan
from sparsify.errors import CompilerError, KernelError, SparsifyError, UnsupportedProgramError
from sparsify.options import Options
from sparsify.passes.base import Notices
from sparsify.passes.origin import Origin
from sparsify.passes.structure import Aligned, Structure
from sparsify.storage.tensor import SparseTensor

FAILURES: Final = (CompilerError, KernelError, UnsupportedProgramError)
DENSE_GRADIENTS: Final = "gradients of sparse regions are computed densely from now on"


@dataclass(frozen=True)
class SizeAt:
    """An extent that is an argument of the call."""

    argument: int


@dataclass(frozen=True)
class Operand:
    """Where an operand of the program comes from.

    Attributes:
        name: its name in the program.
        argument: the position of the tensor among the call's arguments; with a structure that of a sparse
            operand's values, -1 when the structure knows them.
        structure: what computes it once per graph.
        leaves: the positions of the structure's leaves among the arguments.
        result: the position among the structure's results.
        is_full: whether it is a dense input whose zeros are left out: its gradient is not zero there.
    """

    name: str
    argument: int
    structure: Structure | None = None
    leaves: tuple[int, ...] = ()
    result: int = 0
    is_full: bool = False


# Handles are drawn at random: one that a program exported elsewhere brings along belongs to no region here.
_calls: "weakref.WeakValueDictionary[int, RegionCall]" = weakref.WeakValueDictionary()
_exported: dict[int, "RegionCall"] = {}


class RegionCall:
    """A region's kernel with the way its operands are found.

    Args:
        program: the einsum program; its inputs are in the order of `operands`.
        shape: per mode of the result its extent, or the argument that is its extent.
        dense: the nodes that the region replaces, for when the kernel cannot be built or fails.
        options: settings.
        notices: where the warning about a failure goes.
        is_strict: whether a failure raises.

    Attributes:
        name: for reports.
        kernel: of the program; what makes the call sees to it that it is built.
        failure: why the dense nodes compute now, `None` as long as the kernel does.
        gradient_failure: why they do when gradients are wanted.
        differentiable: the positions of arguments whose gradients were computed by a kernel before.
    """

    def __init__(
        self,
        program: Program,
        operands: Sequence[Operand],
        shape: tuple[int | SizeAt, ...],
        dense: fx.GraphModule,
        options: Options,
        notices: Notices,
        is_strict: bool = False,
    ) -> None:
        self.name, self.program, self.operands = "", program, tuple(operands)
        self._sources = [(o.argument, o.structure, o.leaves, o.result) for o in self.operands]
        self.shape, self.dense, self.options, self.notices = shape, dense, options, notices
        self.dtype = getattr(torch, program.declaration(program.outputs[0]).dtype)
        self.is_strict = is_strict
        self.failure: SparsifyError | None = None
        self.gradient_failure: SparsifyError | None = None
        self.times_us: list[float] | None = None
        self.full = tuple(leaf for operand in self.operands if operand.is_full for leaf in operand.leaves)
        self.handle = secrets.randbits(62)
        self.kernel = plan(program, options=options)
        self.differentiable: set[tuple[int, ...]] = set()
        self.origin: Origin | None = None
        _calls[self.handle] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "RegionCall":
        return self  # kernels and memories are shared: they hold no parameters

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """The operands in the order of the program."""
        found = []
        for argument, structure, leaves, result in self._sources:
            if structure is None:
                found.append(arguments[argument])
                continue
            value = structure(tuple([arguments[at] for at in leaves]))[result]
            if type(value) is Aligned:
                value = SparseTensor(value.pattern, value.values(arguments[argument]))
            found.append(value)
        return found

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """The result of the region, by the dense nodes once the kernel has failed, and for full gradients."""
        wanted = wanted_gradients(arguments) if torch.is_grad_enabled() else ()
        if wanted and wanted not in self.differentiable and self.has_kernel(wanted):
            tried: torch.Tensor = FirstGradient.apply(self, *arguments)  # type: ignore[no-untyped-call]
            return tried
        return self.computed(arguments, wanted)

    def computed(self, arguments: Sequence[Any], wanted: tuple[int, ...]) -> torch.Tensor:
        """The result of the region, by the kernel if it can."""
        if self.failure is None and (not wanted or self.has_kernel(wanted)):
            try:
                operands = self.values(arguments)
                if self.times_us is None:
                    return self.kernel(*operands)  # type: ignore[no-any-return]
                return self.timed(operands, self.times_us)
            except FAILURES as error:
                self.failure = self.noted(error, "sparse regions run densely from now on")
        fallback: torch.Tensor = self.dense(*arguments)[0]
        return fallback

    def has_kernel(self, wanted: tuple[int, ...]) -> bool:
        """Whether a kernel computes the result, and the gradients of the arguments at these positions."""
        if self.failure is not None:
            return False
        if not wanted:
            return True
        # A sparse operand leaves out the gradient at its zeros, which an input may need.
        return self.gradient_failure is None and not any(position in wanted for position in self.full)

    def gradients(
        self, arguments: Sequence[Any], needed: Sequence[int], result: torch.Tensor, gradient: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """The gradients of the arguments at the positions `needed`, from the result and its gradient."""
        inputs = list(arguments)
        for position in needed:
            inputs[position] = inputs[position].detach().requires_grad_()
        wanted = [inputs[position] for position in needed]
        with torch.enable_grad():
            outputs, found = self.pulled_back(inputs, result, gradient)
        return list(torch.autograd.grad(outputs, wanted, found, allow_unused=True))

    def pulled_back(
        self, inputs: Sequence[Any], result: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors computed from the inputs, and their gradients; those of the dense nodes when the kernel fails."""
        wanted = wanted_gradients(inputs)
        if self.has_kernel(wanted):
            try:
                found = self.operand_gradients(self.values(inputs), result, gradient)
                self.differentiable.add(wanted)
                return found
            except FAILURES as error:
                self.gradient_failure = self.noted(error, DENSE_GRADIENTS)
        return [self.dense(*inputs)[0]], [gradient]

    def operand_gradients(
        self, operands: Sequence[torch.Tensor], result: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The operands that require gradients, and their gradients."""
        program = self.program
        wrt = [operand.requires_grad for operand in operands]
        values = dict(zip(program.inputs, (operand.detach() for operand in operands), strict=True))
        values[program.outputs[0]] = result
        names = tuple(name for name, wants in zip(program.inputs, wrt, strict=True) if wants)
        with torch.no_grad():
            found = pull_back(self.kernel, values, (gradient.contiguous(),), names)
        pairs = [
            (entries(operand), entries(found[name]))
            for name, operand in zip(program.inputs, operands, strict=True)
            if name in found
        ]
        return [operand for operand, _ in pairs], [value for _, value in pairs]

    def gradients_with_graph(
        self, arguments: Sequence[Any], needed: Sequence[int], gradient: torch.Tensor
    ) -> Sequence[torch.Tensor | None]:
        """The same gradients, differentiable in their turn; the forward pass is computed again."""

        def differentiated() -> Sequence[torch.Tensor | None]:
            result = self.computed(arguments, wanted_gradients(arguments))
            inputs = [arguments[position] for position in needed]
            return torch.autograd.grad(result, inputs, gradient, create_graph=True, allow_unused=True)

        if self.gradient_failure is None:
            try:
                return differentiated()
            except FAILURES as error:
                self.gradient_failure = self.noted(error, DENSE_GRADIENTS)
        return differentiated()

    def timed(self, operands: Sequence[torch.Tensor], times_us: list[float]) -> torch.Tensor:
        """The kernel's result; how long it took goes into `times_us`."""
        started = time.perf_counter()
        result: torch.Tensor = self.kernel(*operands)
        times_us.append((time.perf_counter() - started) * 1e6)
        return result

    def noted(self, error: SparsifyError, consequence: str) -> SparsifyError:
        """The error, after one warning; under strict it is raised."""
        if self.is_strict:
            raise error
        self.notices.warn(f"{consequence}: {error}")
        return error

    def result_shape(self, arguments: Sequence[Any]) -> list[Any]:
        """The shape of the result for these arguments."""
        return [e if isinstance(e, int) else arguments[e.argument] for e in self.shape]


class FirstGradient(torch.autograd.Function):
    """A region whose gradients no kernel has computed yet: when there can be none, the dense nodes do it."""

    @staticmethod
    def forward(ctx: Any, call: RegionCall, *arguments: Any) -> torch.Tensor:
        result = call.computed(arguments, ())
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        ctx.call = call
        ctx.sizes = [None if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        ctx.save_for_backward(result, *tensors)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: RegionCall = ctx.call
        result, *tensors = ctx.saved_tensors
        left = iter(tensors)
        arguments = [next(left) if size is None else size for size in ctx.sizes]
        needed = [position for position, need in enumerate(ctx.needs_input_grad[1:]) if need]
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            found = call.gradients_with_graph(arguments, needed, gradient)
        else:
            found = call.gradients(arguments, needed, result, gradient)
        made = dict(zip(needed, found, strict=True))
        return None, *[made.get(position) for position in range(len(arguments))]


def wanted_gradients(arguments: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the arguments whose gradients are wanted."""
    if not torch.is_grad_enabled():
        return ()
    return tuple(
        [at for at, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.requires_grad]
    )


def entries(value: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor, a dense one itself."""
    return value.values() if isinstance(value, SparseTensor) else value


def find(handle: int) -> RegionCall:
    """The region with this handle.

    Raises:
        SparsifyError: it is gone, or was never in this process.
    """
    call = _calls.get(handle)
    if call is None:
        raise SparsifyError(
            "this program calls a kernel of a sparse model that this process does not have",
            "keep the result of sparsify.apply alive; a program exported elsewhere is made again by apply and export",
        )
    return call


def call_region(handle: int, *arguments: Any) -> torch.Tensor:
    """The result of the region `handle` for its arguments, tensors and sizes."""
    if torch.compiler.is_compiling():
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        sizes = [argument for argument in arguments if not isinstance(argument, torch.Tensor)]
        places = [
            position for position, argument in enumerate(arguments) if not isinstance(argument, torch.Tensor)
        ]
        traced: torch.Tensor = torch.ops.sparsify.region(handle, tensors, sizes, places)
        return traced
    return find(handle)(*arguments)


def merged(tensors: Sequence[torch.Tensor], sizes: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The arguments in their order: tensors, with the sizes put back at their places."""
    arguments: list[Any] = list(tensors)
    for place, size in zip(places, sizes, strict=True):
        arguments.insert(place, size)
    return arguments


def run(handle: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int]) -> torch.Tensor:
    """The operator's computation."""
    return find(handle)(*merged(tensors, sizes, places))


def shape_only(handle: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int]) -> torch.Tensor:
    """The operator on fake tensors."""
    call = find(handle)
    if torch.compiler.is_exporting():
        _exported[handle] = call  # lives as long as exported programs may
    arguments = merged(tensors, sizes, places)
    return tensors[0].new_empty(call.result_shape(arguments), dtype=call.dtype)


def run_backward(
    handle: int, gradient: torch.Tensor, result: torch.Tensor, tensors: list[torch.Tensor], sizes: list[int],
    places: list[int], needed: list[int],
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of the tensors at the positions `needed`."""
    arguments = merged(tensors, sizes, places)
    positions = [position for position in range(len(arguments)) if position not in places]
    found = find(handle).gradients(arguments, [positions[at] for at in needed], result, gradient)
    taken = {tensor.untyped_storage().data_ptr() for tensor in (gradient, result, *tensors)}
    gradients = []
    for at, value in zip(needed, found, strict=True):
        own = torch.zeros_like(tensors[at]) if value is None else value.contiguous()
        if own.untyped_storage().data_ptr() in taken:
            own = own.clone()  # an operator's results share no memory with its operands or each other
        taken.add(own.untyped_storage().data_ptr())
        gradients.append(own)
    return gradients


def backward_shapes(
    handle: int, gradient: torch.Tensor, result: torch.Tensor, tensors: list[torch.Tensor], sizes: list[int],
    places: list[int], needed: list[int],
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients on fake tensors."""
    return [torch.empty_like(tensors[position], memory_format=torch.contiguous_format) for position in needed]


def remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keeps what backward needs."""
    handle, tensors, sizes, places = inputs
    ctx.handle, ctx.sizes, ctx.places = handle, sizes, places
    ctx.needed = [position for position, tensor in enumerate(tensors) if tensor.requires_grad]
    ctx.save_for_backward(output, *tensors)


def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, list[torch.Tensor | None], Any, Any]:
    """The gradients of all arguments."""
    result, *tensors = ctx.saved_tensors
    found = torch.ops.sparsify.region_backward(
        ctx.handle, gradient, result, tensors, ctx.sizes, ctx.places, ctx.needed
    )
    gradients: list[torch.Tensor | None] = [None] * len(tensors)
    for position, value in zip(ctx.needed, found, strict=True):
        gradients[position] = value
    nothing: list[Any] | None = [] if not ctx.places else None  # the empty list is a structure without leaves
    return None, gradients, nothing, nothing


REGION = "region(int handle, Tensor[] tensors, SymInt[] sizes, int[] places) -> Tensor"
REGION_BACKWARD = (
    "region_backward(int handle, Tensor gradient, Tensor result, Tensor[] tensors, SymInt[] sizes, int[] places, "
    "int[] needed) -> Tensor[]"
)
_library = torch_operator.register(
    torch_operator.Operator(REGION, run, shape_only, remember, backward),
    torch_operator.Operator(REGION_BACKWARD, run_backward, backward_shapes),
)
