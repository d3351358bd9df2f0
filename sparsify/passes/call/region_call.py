"""The call of a region: collects its operands and runs its kernel.

In: `call_region(handle, x, edge_index, 2708, w, b)`. Out: the region's result, several in a tuple, differentiable.
Eager calls run the kernel directly. Under tracing, compilation or export the same call is the operator of
`region_operator`.
"""

import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import fx
from torch.autograd import forward_ad

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel.kernel import Kernel, plan
from sparsify.compiler.kernel.recall import recalled
from sparsify.compiler.kernel.transforms.autograd import pull_back, read_by_gradients
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.errors import CompilerError, DeviceError, KernelError, SparsifyError, UnsupportedProgramError
from sparsify.options import Options
from sparsify.passes.call.alternative import ByRows, Preferred
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
from sparsify.passes.operands.sliding_window import Grid
from sparsify.passes.region.printer import Origin
from sparsify.runtime.saved_tensors import are_hooked
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.subclass import trained_masks
from sparsify.storage.tensor import SparseTensor, wrap
from sparsify.storage.transformed import have_tangents


@dataclass(frozen=True)
class SizeAt:
    """An extent passed as an argument of the call."""

    argument: int


@dataclass(frozen=True)
class Operand:
    """Source of an operand of the program.

    Attributes:
        name: name in the program.
        argument: position of the tensor among the call's arguments; with a structure, the position of the sparse
            operand's values, -1 when the structure has the values.
        structure: memoized computation per graph.
        leaves: positions of the structure's leaves among the arguments.
        result: position among the structure's results.
        is_full: whether the operand is a dense input stored without zeros: its gradient is nonzero there.
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


# Random handles: a handle in a program exported by another process never denotes a region of this process.
_calls: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def handle_of(call: Any) -> int:
    """A handle for lookups of a live call by graph nodes."""
    handle = secrets.randbits(62)
    _calls[handle] = call
    return handle


def find(handle: int) -> Any:
    """The call of a handle: a `RegionCall`, or an object with the same interface.

    Raises:
        SparsifyError: the call no longer exists, or belongs to another process.
    """
    call = _calls.get(handle)
    if call is None:
        raise SparsifyError(
            "this program calls a kernel of a sparse model that this process does not have",
            "keep the result of sparsify.apply alive; a program exported elsewhere is made again by apply and export",
        )
    return call


class Nodes(Protocol):
    """The nodes replaced by a region, as a function of its arguments."""

    @property
    def graph(self) -> fx.Graph:
        """The nodes."""

    def __call__(self, *arguments: Any) -> Any:
        """The results of the nodes for some arguments."""


class RegionCall:
    """A region's kernel with the sources of its operands.

    Args:
        program: einsum program; its inputs are in the order of `operands`.
        shapes: extent per mode of each result, or the argument with the extent.
        dense: nodes replaced by the region, the fallback for a kernel that cannot be built or fails.
        options: settings.
        notices: receiver of the failure warning.
        is_strict: whether a failure raises.
        library: product of another library, in place of the kernel for calls without gradients.
        layout: mapping from a convolution's arguments to operands; its gradients come from the dense nodes.
        kernel: existing kernel of the program, if any.

    Attributes:
        name: name in reports.
        is_several: whether the result is a tuple.
        kernel: kernel of the program; built by the creator of the call.
        failure: reason for the dense fallback, `None` as long as the kernel works.
        gradient_failure: reason for the dense fallback in calls with gradients.
        refusal: reason for the dense fallback of calls with operands unsupported by the kernel.
        densely: positions of arguments whose gradients require the dense nodes, for all gradients of the call.
        notes: lines of the report.
        weights: packing structure of each argument that is a weight (dense, packed or sparse), with the positions of
            the structure's leaves, by argument position.
        differentiable: argument positions with gradients already computed by a kernel.
        is_general: whether the front end made the region, not a recogniser.
        dense_form: fastest dense form of the nodes as timed, "" for the unchanged nodes.
        is_portable: whether exported graphs hold the region's computation, not its handle.
        preferred: faster alternative for calls similar to the timed one, or by rows, without gradients.
        label: name of its calls in a profile, none where empty.
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
        self._parameters: Callable[[tuple[Any, ...]], list[Any]] | None = None
        # The positions of images and summands among the arguments of a convolution.
        places = () if layout is None else (layout.places.image, *layout.places.added)
        self._images = tuple([operands[place].argument for place in places])
        self._image = self._images[0] if places else -1
        self.name, self.program, self.operands = "", program, tuple(operands)
        self.label = ""
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
        self.dense_form = ""
        self.is_general = self.is_portable = False
        self.handle = handle_of(self)
        self.kernel = plan(program, options=options) if kernel is None else kernel
        self.differentiable: set[tuple[int, ...]] = set()
        self._read: dict[tuple[int, ...], frozenset[str]] = {}
        self.origin: Origin | None = None
        self.preferred: Preferred | ByRows | None = None

    def plan_for(self, sizes: Sizes, fixed: Sizes = UNKNOWN) -> None:
        """Plans the program again for operands of known sizes, which may generate dense products.

        Extents in `fixed`, the same in every call, may become constants of the kernels.
        """
        from sparsify.compiler.plan.prepare.specialise import specialised

        self.kernel = plan(specialised(self.program, fixed), options=self.options, sizes=sizes)
        self._read = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "RegionCall":
        return self  # kernels and caches are shared: they hold no parameters

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """The operands in the order of the program."""
        found = self.given(arguments)
        return found if self.layout is None else self.layout.operands(found)

    def made(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The operands, or `None` for arguments without valid operands, with one warning."""
        try:
            return self.values(arguments)
        except FAILURES as error:
            if self.is_strict or self.refusal is None:
                self.refusal = self.noted(error, "calls whose operands no kernel can have run densely")
            return None

    def given(self, arguments: Sequence[Any]) -> list[Any]:
        """The operands of the region's nodes, computed by structures."""
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
        if self.label:
            with torch.profiler.record_function(self.label):
                return self._result(arguments)
        return self._result(arguments)

    def _result(self, arguments: tuple[Any, ...]) -> Result:
        """The result, without a label in a profile."""
        wanted = wanted_gradients(arguments) if torch.is_grad_enabled() else ()
        is_transformed = torch._C._are_functorch_transforms_active()
        if is_transformed and self.layout is not None:
            return self.dense_result(self.layout.without_weight(arguments))
        if forward_ad._current_level >= 0 and not is_transformed and have_tangents(arguments):
            return self.dense_result(arguments)  # memoized structures have no tangents
        # A checkpoint's recomputation saves the same tensors as its first call, whatever was built, or failed, between.
        if wanted and not is_transformed and (wanted not in self.differentiable or are_hooked()):
            by_kernel = tuple([position for position in wanted if position not in self.densely])
            if self.has_kernel(by_kernel) or (are_hooked() and wanted in self._read):
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
                    raise  # otherwise the operators of the model report the error
        return self.dense_result(arguments)

    def by_alternative(self, preferred: Preferred | ByRows, arguments: Sequence[Any]) -> Result | None:
        """The preferred alternative's result, `None` where the alternative does not take the call or failed."""
        if torch._C._are_functorch_transforms_active() or not preferred.takes(arguments):
            return None
        try:
            return timed(preferred.alternative.run, (self, arguments), self.times_us)
        except RuntimeError as error:
            self.preferred = None
            self.notices.warn(f"{preferred.alternative.name} failed, kernels run from now on: {error}")
            return None

    def convolved(self, layout: FlatImages, arguments: Sequence[Any]) -> Result:
        """The result of a convolution; torch reports images smaller than the window."""
        grid = layout.grid(arguments[self._image])
        if not grid.has_results or (layout.refused and grid in layout.refused):
            return self.dense_result(arguments)
        try:
            return timed(self.run_convolution, (layout, grid, arguments), self.times_us)
        except FAILURES as error:
            if grid == layout.example:
                self.failure = self.noted(error, DENSE_RESULTS)
            else:
                self.noted(error, f"images of {grid.extents} are convolved densely from now on")
                layout.refused.add(grid)
        return self.dense_result(arguments)

    def run_convolution(self, layout: FlatImages, grid: Grid, arguments: Sequence[Any]) -> torch.Tensor:
        """The result of a convolution's kernel; the operands beside images are computed after changes alone."""
        kernel = self.kernel if grid.extents == layout.example.extents else layout.others.get(grid.extents)
        if kernel is None:
            sizes = layout.sizes(
                len(arguments[self._image]), self.given(arguments)[layout.places.weight], grid
            )
            kernel = layout.kernel_for(grid, self.program, self.options, sizes)
        if self._parameters is None:
            self._parameters = (
                recalled(weakly_bound(self.parameter_operands))
                if layout.placed.most
                else self.parameter_operands
            )
        leaves = [*arguments]
        for position in self._images:
            leaves[position] = None
        parameters = self._parameters((grid, *leaves))
        images = [arguments[position] for position in self._images]
        return layout.run(kernel, grid, images, parameters)

    def parameter_operands(self, leaves: tuple[Any, ...]) -> list[Any]:
        """The operands of a convolution's kernel between images and summands, which are None among the arguments."""
        assert self.layout is not None, "other regions have no images"
        grid, *arguments = leaves
        return self.layout.parameter_operands(self.given(arguments), grid)

    def portable(self, arguments: Sequence[Any]) -> Result | None:
        """The result as an operator of a traced graph that embeds the whole kernel, portable to other processes.

        None for regions of trained models, and for operands other than packed weights read unchanged.
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
        """The result of the replaced nodes; packed weights are unpacked for them."""
        known = list(arguments)
        for position, (structure, leaves) in self.weights.items():
            if isinstance(known[position], SparseTensor):
                known[position] = structure.dense_weight(tuple([arguments[at] for at in leaves]))
        found = self.dense(*known)
        return tuple(found) if self.is_several else found[0]

    def has_kernel(self, wanted: tuple[int, ...]) -> bool:
        """Whether a kernel computes the result, and the gradients of the arguments at some positions."""
        if self.failure is not None or self.library is not None:
            return False
        if not wanted:
            return True
        # A sparse operand omits the gradient at its zeros, which an input may need.
        dense = {*self.full, *self.densely}
        return self.gradient_failure is None and not any(position in wanted for position in dense)

    def gradients(
        self, arguments: Sequence[Any], needed: Sequence[int], results: Known, gradients: Gradients
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the arguments at the positions `needed`, from results and gradients, `None` for zeros.

        Missing results (`None`) are recomputed if read.
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
        """The results that a kernel reads for the gradients of `wanted`, `None` in place of the others."""
        read = self._read.get(wanted)
        if read is None:
            if self.layout is not None or not self.has_kernel(wanted):
                return [None] * len(results)
            names = [o.name for o in self.operands if not {o.argument, *o.leaves}.isdisjoint(wanted)]
            try:
                read = frozenset(read_by_gradients(self.kernel, tuple(names)))
            except FAILURES:  # raised again when gradients are computed
                read = frozenset()
            self._read[wanted] = read
        names_of = zip(results, self.program.outputs, strict=True)
        return [result if name in read else None for result, name in names_of]

    def pulled_back(
        self, inputs: Sequence[Any], results: Known, gradients: Gradients
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Tensors computed from the inputs, and their gradients; by the dense nodes if the kernel fails."""
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
        """The gradients of all results, with zeros in place of missing ones."""
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
        """The operands that require gradients, and the gradients."""
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
        """The gradients, differentiable again; the forward pass is recomputed."""

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
        """The error, after one warning and a line in the report; raised under strict."""
        if self.is_strict:
            raise error
        self.notices.warn(f"{consequence}: {error}")
        self.notes.append(f"{consequence}: {error}".splitlines()[0])
        return error

    def result_shapes(self, arguments: Sequence[Any]) -> list[list[Any]]:
        """The shapes of the results for some arguments."""
        if self.layout is not None:
            return [self.layout.shape(arguments)]
        return [[e if isinstance(e, int) else arguments[e.argument] for e in shape] for shape in self.shapes]


def weakly_bound(method: Callable[[tuple[Any, ...]], list[Any]]) -> Callable[[tuple[Any, ...]], list[Any]]:
    """The method, without a reference to its object: cycles through objects of C are never collected."""
    reference = weakref.WeakMethod(method)

    def called(leaves: tuple[Any, ...]) -> list[Any]:
        bound = reference()
        assert bound is not None, "the object calls its own method"
        return bound(leaves)

    return called


def on_one_device(operands: list[Any]) -> list[Any]:
    """Operands with masks, computed from lengths alone, on the device of the other operands."""
    device = next((one.device for one in operands if not runs_natively((one,))), None)
    if device is None:
        return operands
    return [
        wrap(one._pattern, one._vals.to(device), one._fill) if isinstance(one, SparseTensor) else one
        for one in operands
    ]


def timed(call: Callable[..., Result], operands: Sequence[Any], times_us: list[float] | None) -> Result:
    """The result of a call; its duration is appended to `times_us` unless None."""
    if times_us is None:
        return call(*operands)
    started = time.perf_counter()
    result = call(*operands)
    times_us.append((time.perf_counter() - started) * 1e6)
    return result


def wanted_gradients(arguments: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the arguments that require gradients."""
    if not torch.is_grad_enabled():
        return ()
    # The guard makes reads of sparse tensors' attributes bypass `__torch_function__`.
    with torch._C.DisableTorchFunctionSubclass():
        tensors = enumerate(arguments)
        return tuple([at for at, value in tensors if isinstance(value, torch.Tensor) and value.requires_grad])


def entries(value: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor, a dense one itself."""
    return value.values() if isinstance(value, SparseTensor) else value
