"""The call of a region: finds its operands and runs its kernel.

In: `call_region(handle, x, edge_index, 2708, w, b)`. Out: the region's result, several in a tuple, differentiable.

Eager calls go straight to the kernel. While tracing, compiling or exporting the same call is the operator of
`region_operator`.
"""

import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import fx
from torch.autograd import forward_ad

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel.autograd import pull_back, read_by_gradients
from sparsify.compiler.kernel.kernel import Kernel, plan
from sparsify.compiler.plan.specialise import specialised
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.errors import CompilerError, DeviceError, KernelError, SparsifyError, UnsupportedProgramError
from sparsify.options import Options
from sparsify.passes.call.alternative import Preferred
from sparsify.passes.call.first_backward import (
    FirstGradient,
    Gradients,
    Known,
    Result,
    differentiated,
    with_gradients,
)
from sparsify.passes.capture.draft import Notices
from sparsify.passes.operands.alignment import Aligned
from sparsify.passes.operands.cached_operands import Structure
from sparsify.passes.operands.convolution_operands import FlatImages
from sparsify.passes.region.printer import Origin
from sparsify.storage import trained_masks
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.tensor import SparseTensor, wrap
from sparsify.storage.transformed import have_tangents


@dataclass(frozen=True)
class SizeAt:
    """An extent that is an argument of the call."""

    argument: int


@dataclass(frozen=True)
class Operand:
    """Source of an operand of the program.

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


FAILURES: Final = (CompilerError, KernelError, UnsupportedProgramError)
DENSE_RESULTS: Final = "sparse regions run densely from now on"
DENSE_GRADIENTS: Final = "gradients of sparse regions are computed densely from now on"


# Handles are drawn at random: one that a program exported elsewhere brings along belongs to no region here.
_calls: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def handle_of(call: Any) -> int:
    """A handle by which the nodes of a graph find a call, as long as it lives."""
    handle = secrets.randbits(62)
    _calls[handle] = call
    return handle


def find(handle: int) -> Any:
    """The call with this handle: a `RegionCall`, or what gives results as one does.

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


class Nodes(Protocol):
    """The nodes that a region replaces, as a function of its arguments."""

    @property
    def graph(self) -> fx.Graph:
        """The nodes."""

    def __call__(self, *arguments: Any) -> Any:
        """Their results."""


class RegionCall:
    """A region's kernel with the way its operands are found.

    Args:
        program: the einsum program; its inputs are in the order of `operands`.
        shapes: of each result per mode its extent, or the argument that is its extent.
        dense: the nodes that the region replaces, for when the kernel cannot be built or fails.
        options: settings.
        notices: where the warning about a failure goes.
        is_strict: whether a failure raises.
        library: computes the result in place of the kernel where no gradients are wanted: another library's product.
        layout: how a convolution's arguments become operands; its gradients are those of the dense nodes.
        kernel: of the program, where there is one already.

    Attributes:
        name: for reports.
        is_several: whether the result is a tuple.
        kernel: of the program; what makes the call sees to it that it is built.
        failure: why the dense nodes compute now, `None` as long as the kernel does.
        gradient_failure: why they do when gradients are wanted.
        refusal: why they computed a call whose operands the kernel cannot have.
        densely: the positions of the arguments whose gradients the dense nodes compute, with all others.
        notes: in the report.
        weights: by the positions of the arguments that are weights, dense, packed or sparse, what packs them, and the
            positions of what that reads.
        differentiable: the positions of arguments whose gradients were computed by a kernel before.
        is_general: whether the front end made the region, and no recogniser.
        is_portable: whether exported graphs hold what the region computes, and not its handle.
        preferred: what computes calls like those that it was timed for, where no gradients are wanted.
    """

    def __init__(
        self,
        program: Program,
        operands: Sequence[Operand],
        shapes: tuple[tuple[int | SizeAt, ...], ...],
        dense: Nodes,
        options: Options,
        notices: Notices,
        is_strict: bool = False,
        library: Callable[..., Result] | None = None,
        layout: FlatImages | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.library, self.layout = library, layout
        self.name, self.program, self.operands = "", program, tuple(operands)
        self._sources = [(o.argument, o.structure, o.leaves, o.result) for o in self.operands]
        self._has_masks = any(o.structure is not None and o.structure.has_masks for o in self.operands)
        self.shapes, self.dense, self.options, self.notices = shapes, dense, options, notices
        self.dtypes = [getattr(torch, program.declaration(name).dtype) for name in program.outputs]
        self.is_several = len(program.outputs) > 1
        self.is_strict = is_strict
        self.failure: SparsifyError | None = None
        self.gradient_failure: SparsifyError | None = None
        self.refusal: SparsifyError | None = None
        self.densely: frozenset[int] = frozenset()
        self.notes: list[str] = []
        self.times_us: list[float] | None = None
        self.full = tuple(leaf for operand in self.operands if operand.is_full for leaf in operand.leaves)
        packing = [(o.structure, o.leaves) for o in self.operands if o.structure and o.structure.holds_weight]
        self.weights = {leaves[0]: (structure, leaves) for structure, leaves in packing}
        self.is_general = self.is_portable = False
        self.handle = handle_of(self)
        self.kernel = plan(program, options=options) if kernel is None else kernel
        self.differentiable: set[tuple[int, ...]] = set()
        self._read: dict[tuple[int, ...], frozenset[str]] = {}
        self.origin: Origin | None = None
        self.preferred: Preferred | None = None

    def plan_for(self, sizes: Sizes, fixed: Sizes = UNKNOWN) -> None:
        """Plans the program again for operands of these sizes: dense products may be generated then.

        Extents of `fixed`, the same in every call, may become constants of the kernels.
        """
        self.kernel = plan(specialised(self.program, fixed), options=self.options, sizes=sizes)
        self._read = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "RegionCall":
        return self  # kernels and memories are shared: they hold no parameters

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """The operands in the order of the program."""
        found = self.given(arguments)
        return found if self.layout is None else self.layout.operands(found)

    def made(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The same, `None` for arguments that give none, as is said once: the kernel computes calls with others."""
        try:
            return self.values(arguments)
        except FAILURES as error:
            if self.is_strict or self.refusal is None:
                self.refusal = self.noted(error, "calls whose operands no kernel can have run densely")
            return None

    def given(self, arguments: Sequence[Any]) -> list[Any]:
        """The operands of the region's nodes, as structures make them."""
        found = []
        read: Structure | None = None
        results: Sequence[Any] = ()
        for argument, structure, leaves, result in self._sources:
            if structure is None:
                found.append(arguments[argument])
                continue
            if structure is not read:
                read, results = structure, structure(tuple([arguments[at] for at in leaves]))
            value = results[result]
            if type(value) is Aligned:
                value = SparseTensor(value.pattern, value.values(arguments[argument]))
            found.append(value)
        return on_one_device(found) if self._has_masks else found

    def __call__(self, *arguments: Any) -> Result:
        """The result of the region, by the dense nodes once the kernel has failed, and for full gradients."""
        wanted = wanted_gradients(arguments) if torch.is_grad_enabled() else ()
        is_transformed = torch._C._are_functorch_transforms_active()
        if is_transformed and self.layout is not None:
            return self.dense_result(self.layout.without_weight(arguments))
        if forward_ad._current_level >= 0 and not is_transformed and have_tangents(arguments):
            return self.dense_result(arguments)  # what is remembered of structures has no tangents
        by_kernel = tuple([position for position in wanted if position not in self.densely])
        if wanted and not is_transformed and wanted not in self.differentiable and self.has_kernel(by_kernel):
            tried: Result = FirstGradient.apply(self, *arguments)  # type: ignore[no-untyped-call]
            return tried
        return self.computed(arguments, wanted)

    def computed(self, arguments: Sequence[Any], wanted: tuple[int, ...]) -> Result:
        """The result of the region, by the kernel if it can."""
        if self.library is not None:
            if wanted or torch._C._are_functorch_transforms_active():
                return self.dense_result(arguments)
            return timed(self.library, arguments, self.times_us)
        if self.preferred is not None and not wanted:
            found = self.by_alternative(self.preferred, arguments)
            if found is not None:
                return found
        if self.failure is None and (not wanted or self.has_kernel(wanted)):
            if self.layout is not None:
                return self.convolved(self.layout, arguments)
            operands = self.made(arguments)
            try:
                if operands is not None:
                    return timed(self.kernel, operands, self.times_us)
            except FAILURES as error:
                self.failure = self.noted(error, DENSE_RESULTS)
            except DeviceError:
                if self.is_strict:
                    raise  # else the operators of the model say what is wrong
        return self.dense_result(arguments)

    def by_alternative(self, preferred: Preferred, arguments: Sequence[Any]) -> Result | None:
        """The result of what is preferred to the kernel, `None` where that does not take such a call or failed."""
        if torch._C._are_functorch_transforms_active() or not preferred.takes(arguments):
            return None
        try:
            return timed(preferred.alternative.run, (self, arguments), self.times_us)
        except RuntimeError as error:
            self.preferred = None
            self.notices.warn(f"{preferred.alternative.name} failed, kernels run from now on: {error}")
            return None

    def convolved(self, layout: FlatImages, arguments: Sequence[Any]) -> Result:
        """The result of a convolution; where images are smaller than windows, torch says so."""
        grid = layout.grid(arguments[layout.places.image])
        if not grid.has_results or (layout.refused and grid in layout.refused):
            return self.dense_result(arguments)
        run = partial(layout.run, self.kernel, self.program, self.options)
        try:
            return timed(run, (self.given(arguments),), self.times_us)
        except FAILURES as error:
            if grid == layout.example:
                self.failure = self.noted(error, DENSE_RESULTS)
            else:
                self.noted(error, f"images of {grid.extents} are convolved densely from now on")
                layout.refused.add(grid)
        return self.dense_result(arguments)

    def portable(self, arguments: Sequence[Any]) -> Result | None:
        """The result as an operator of a traced graph that says all of its kernel, so that other processes run it.

        None for regions of models that train, and where operands are made of more than packed weights as they are.
        """
        if not self.is_portable or self.layout is not None or self.library is not None:
            return None
        for operand in self.operands:
            structure = operand.structure
            if structure is None:
                continue
            spec, weight = structure.weight, arguments[operand.leaves[0]]
            is_packed = spec is not None and type(weight) is SparseTensor and spec.holds(weight)
            if spec is None or not is_packed or spec.transposed or spec.has_scales:
                return None
        found: Result = self.kernel(*self.values(arguments))
        return found

    def dense_result(self, arguments: Sequence[Any]) -> Result:
        """The result of the nodes that the region replaces; packed weights are unpacked for them."""
        known = list(arguments)
        for position, (structure, leaves) in self.weights.items():
            if isinstance(known[position], SparseTensor):
                known[position] = structure.dense_weight(tuple([arguments[at] for at in leaves]))
        found = self.dense(*known)
        return tuple(found) if self.is_several else found[0]

    def has_kernel(self, wanted: tuple[int, ...]) -> bool:
        """Whether a kernel computes the result, and the gradients of the arguments at these positions."""
        if self.failure is not None or self.library is not None:
            return False
        if not wanted:
            return True
        # A sparse operand leaves out the gradient at its zeros, which an input may need.
        dense = {*self.full, *self.densely}
        return self.gradient_failure is None and not any(position in wanted for position in dense)

    def gradients(
        self, arguments: Sequence[Any], needed: Sequence[int], results: Known, gradients: Gradients
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the arguments at the positions `needed`, from the results and theirs, `None` for zeros.

        Results that are read and not there, `None`, are computed again.
        """
        inputs = list(arguments)
        for position in needed:
            inputs[position] = inputs[position].detach().requires_grad_()
        trained_masks.follow([(arguments[position], inputs[position]) for position in needed])
        wanted = [inputs[position] for position in needed]
        with torch.enable_grad():
            outputs, found = self.pulled_back(inputs, results, gradients)
        return differentiated(outputs, wanted, found)

    def read_of(self, results: Sequence[torch.Tensor], wanted: tuple[int, ...]) -> Known:
        """The results that a kernel reads for the gradients of the arguments `wanted`, `None` in place of others."""
        if self.layout is not None or not self.has_kernel(wanted):
            return [None] * len(results)
        read = self._read.get(wanted)
        if read is None:
            names = [o.name for o in self.operands if not {o.argument, *o.leaves}.isdisjoint(wanted)]
            try:
                read = frozenset(read_by_gradients(self.kernel, tuple(names)))
            except FAILURES:  # raised once more when the gradients are asked for
                read = frozenset()
            self._read[wanted] = read
        names_of = zip(results, self.program.outputs, strict=True)
        return [result if name in read else None for result, name in names_of]

    def pulled_back(
        self, inputs: Sequence[Any], results: Known, gradients: Gradients
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors computed from the inputs, and their gradients; those of the dense nodes when the kernel fails."""
        if self.layout is not None:
            return with_gradients(self.dense_result(self.layout.without_weight(inputs)), gradients)
        wanted = wanted_gradients(inputs)
        operands = self.made(inputs) if self.has_kernel(wanted) else None
        if operands is not None:
            try:
                found = self.operand_gradients(operands, results, self.with_zeros(inputs, gradients))
                self.differentiable.add(wanted)
                return found
            except FAILURES as error:
                self.gradient_failure = self.noted(error, DENSE_GRADIENTS)
        return with_gradients(self.dense_result(inputs), gradients)

    def with_zeros(self, arguments: Sequence[Any], gradients: Gradients) -> list[torch.Tensor]:
        """The gradients of all results, zeros of those that have none."""
        if all(gradient is not None for gradient in gradients):
            return list(gradients)  # type: ignore[arg-type]
        device = next(found.device for found in gradients if found is not None)
        kinds = zip(gradients, self.result_shapes(arguments), self.dtypes, strict=True)
        return [
            torch.zeros(s, dtype=dtype, device=device) if found is None else found
            for found, s, dtype in kinds
        ]

    def operand_gradients(
        self, operands: Sequence[torch.Tensor], results: Known, gradients: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The operands that require gradients, and their gradients."""
        program = self.program
        wrt = [operand.requires_grad for operand in operands]
        values = dict(zip(program.inputs, (operand.detach() for operand in operands), strict=True))
        known = zip(program.outputs, results, strict=True)
        values |= {name: result for name, result in known if result is not None}
        names = tuple(name for name, wants in zip(program.inputs, wrt, strict=True) if wants)
        with torch.no_grad():
            given = [gradient.contiguous() for gradient in gradients]
            found = pull_back(self.kernel, values, given, names)
        pairs = [
            (entries(operand), entries(found[name]))
            for name, operand in zip(program.inputs, operands, strict=True)
            if name in found
        ]
        return [operand for operand, _ in pairs], [value for _, value in pairs]

    def gradients_with_graph(
        self, arguments: Sequence[Any], needed: Sequence[int], gradients: Gradients
    ) -> Sequence[torch.Tensor | None]:
        """The same gradients, differentiable in their turn; the forward pass is computed again."""

        def found() -> Sequence[torch.Tensor | None]:
            if self.layout is not None:
                result = self.dense_result(self.layout.without_weight(arguments))
            else:
                result = self.computed(arguments, wanted_gradients(arguments))
            inputs = [arguments[position] for position in needed]
            outputs, given = with_gradients(result, gradients)
            return differentiated(outputs, inputs, given, create_graph=True)

        if self.gradient_failure is None:
            try:
                return found()
            except FAILURES as error:
                self.gradient_failure = self.noted(error, DENSE_GRADIENTS)
        return found()

    def noted(self, error: SparsifyError, consequence: str) -> SparsifyError:
        """The error, after one warning and a line in the report; under strict it is raised."""
        if self.is_strict:
            raise error
        self.notices.warn(f"{consequence}: {error}")
        self.notes.append(f"{consequence}: {error}".splitlines()[0])
        return error

    def result_shapes(self, arguments: Sequence[Any]) -> list[list[Any]]:
        """The shapes of the results for these arguments."""
        if self.layout is not None:
            return [self.layout.shape(arguments)]
        return [[e if isinstance(e, int) else arguments[e.argument] for e in shape] for shape in self.shapes]


def on_one_device(operands: list[Any]) -> list[Any]:
    """Operands with masks, which follow from lengths alone, on the device of the others."""
    device = next((one.device for one in operands if not runs_natively((one,))), None)
    if device is None:
        return operands
    return [
        wrap(one._pattern, one._vals.to(device), one._fill) if isinstance(one, SparseTensor) else one
        for one in operands
    ]


def timed(call: Callable[..., Result], operands: Sequence[Any], times_us: list[float] | None) -> Result:
    """The result of a call; how long it took goes into `times_us` where there is such a list."""
    if times_us is None:
        return call(*operands)
    started = time.perf_counter()
    result = call(*operands)
    times_us.append((time.perf_counter() - started) * 1e6)
    return result


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
