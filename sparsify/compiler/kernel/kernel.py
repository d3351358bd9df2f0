"""Kernels: a program compiled to a plan of steps, and the call that runs it on tensors.

In: `compile_program(program)` and operands in the order of `program.inputs`. Out: the results, differentiable.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import torch

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel import fast_call, substitute, tracing
from sparsify.compiler.kernel.decision_cache import recall
from sparsify.compiler.kernel.fast_call import Plan
from sparsify.compiler.kernel.prepare import prepare_all
from sparsify.compiler.kernel.stages import plan_of
from sparsify.compiler.kernel.statement_kernel import GeneratedStep, has_interior
from sparsify.compiler.kernel.transforms import functorch
from sparsify.compiler.kernel.transforms.autograd import Differentiable, Kept, keep
from sparsify.compiler.kernel.variants import Variants
from sparsify.compiler.plan.prepare.pair_numbers import PairView
from sparsify.compiler.plan.step import STEP_CLASSES, Step, TorchStep
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.errors import CompilerError, ShapeError
from sparsify.options import Options, current
from sparsify.storage.format import Format
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.transformed import have_tangents

if TYPE_CHECKING:
    from sparsify.compiler.plan.rematerialize import Keeping

Operand = torch.Tensor
Chooser = Callable[[Sequence[Operand]], tuple[Operand, ...]]
# Calls in a row that no frame can hold, after which a kernel takes the slow path for good.
REFUSALS: Final = 8
# A step, the function that selects its operands from all tensors, and the slots of its results; a single result is
# not in a list.
Move = tuple["TorchStep | GeneratedStep", Chooser, list[int] | int]


class Kernel:
    """A compiled program.

    Attributes:
        program: program to compute.
        schedule: requested schedule, `None` for a separate schedule of each statement.
        steps: steps in order, generated kernels and products of torch.
        generated: steps that are generated kernels.
        sizes: sizes of the operands of the last preparation.
        options: options of planning.
        cache: `hit` if all kernels were found, `miss` if the last request built one, `none` without kernels.
        kept: saved tensors of the backward pass, by the arguments of `Differentiable` that need gradients.
        is_prepared: whether the kernel was compiled for some sizes.
        results: function from a tuple of operands to the results, not differentiable; a single result is not in a
            tuple.
    """

    def __init__(
        self,
        program: Program,
        plan: tuple["TorchStep | GeneratedStep", ...],
        schedule: Schedule | None = None,
        options: Options | None = None,
    ) -> None:
        self.program, self.steps, self.schedule = program, plan, schedule
        self.options = options or current()
        self._names, self._results = program.inputs, program.outputs
        step = plan[0] if len(plan) == 1 else None
        # The step of a program with one step that reads the operands, and makes the results, in the program's order.
        is_whole = isinstance(step, GeneratedStep) and (step.operands, step.results) == (
            self._names,
            self._results,
        )
        self._whole = step if isinstance(step, GeneratedStep) and is_whole else None
        self.generated = [step for step in plan if isinstance(step, GeneratedStep)]
        self._slots: dict[str, int] = {name: slot for slot, name in enumerate(self._names)}
        self._moves = [self._move(step) for step in plan]
        self._result_slots = [self._slots[name] for name in self._results]
        self.cache = "hit"
        self.estimated_us: float | None = None
        self.kept: dict[tuple[bool, ...], Kept] = {}
        self.is_prepared = False
        self._adjoints: dict[tuple[str, ...], Kernel] = {}
        self._dense_adjoints: dict[tuple[str, ...], Kernel] = {}
        self._temporaries: dict[tuple[str, ...], Kernel] = {}
        self._empties: dict[tuple[tuple[str, int], ...], Kernel] = {}
        self._refusals = 0
        self._call: Callable[[tuple[Operand, ...]], Any] = self._first_call
        self.results: Callable[[tuple[Operand, ...]], Any] = self._first_results
        self.sizes = UNKNOWN

    def _move(self, step: "TorchStep | GeneratedStep") -> "Move":
        """A step with the slots of its operands and results; each result gets a slot."""
        names = step.results if isinstance(step, GeneratedStep) else (step.result,)
        read = _chooser([self._slots[name] for name in step.operands])
        written = [self._slots.setdefault(name, len(self._slots)) for name in names]
        return step, read, written if len(written) > 1 else written[0]

    def sizes_as_read(self, sizes: Sizes) -> Sizes:
        """The sizes of the operands of all steps, from those of the program's operands."""
        sizes = sizes.shared(self.program)
        for step in self.steps:
            if isinstance(step, PairView):
                sizes = step.sizes(sizes)
        return sizes

    @property
    def key(self) -> str:
        """The shortened cache keys of the generated kernels; `torch` if torch's operators compute."""
        return "+".join(dict.fromkeys(step.key for step in self.generated)) or "torch"

    @property
    def failure(self) -> CompilerError | None:
        """The reason that torch's operators compute a step; `None` if no kernel is known to be missing."""
        return next((step.failure for step in self.generated if step.failure is not None), None)

    def _settings(self) -> Options:
        """The options in force, strict if the plan's options are strict."""
        found = current()
        return replace(found, strict=True) if self.options.strict and not found.strict else found

    @property
    def has_frames(self) -> bool:
        """Whether calls of the kernel may take the fast path."""
        return self._refusals < REFUSALS

    def prepare(self, sizes: Sizes) -> None:
        """Compiles the kernels for operands of these sizes, those of several statements in parallel.

        Raises:
            ScheduleError, UnsupportedProgramError, CompilerError: as `compile_program`.
        """
        (error,) = prepare_all([(self, sizes)])
        self.is_prepared = True
        if error is not None:
            raise error

    def prepare_for(self, sizes: Sizes, operands: Sequence[Operand]) -> None:
        """Compiles the kernels for a call with these operands, which have these sizes.

        If some operands require gradients and the forward pass saves temporaries for backward, the kernels of both
        passes are compiled in parallel, and not the kernel that saves none.

        Raises:
            ScheduleError, UnsupportedProgramError, CompilerError: as `compile_program`.
        """
        self.sizes = sizes.without_operands()
        needs = tuple([operand.requires_grad for operand in operands])
        kept = None
        if torch.is_grad_enabled() and any(needs):
            kept = self.kept.setdefault((False, *needs), keep(self, needs))
        if kept is None or kept.forward is self:
            self.prepare(sizes)
            return
        # Errors of gradients are raised by the backward pass.
        error, _ = prepare_all([(kept.forward, sizes), (self.adjoint(kept.wrt), sizes)])
        if error is not None:
            raise error

    def prefer(self, step: GeneratedStep, schedule: Schedule, sizes: Sizes) -> None:
        """Fixes a benchmarked schedule of a statement for operands in the size class of `sizes`.

        Calls that `evaluate` and `einsum` have memoized keep their kernels.
        """
        step.prefer(schedule, sizes)
        self._call, self.results = self._first_call, self._first_results

    def __call__(self, *operands: Operand) -> Any:
        """The results for operands in the order of `program.inputs`; a single result is not in a tuple.

        Raises:
            ShapeError, DtypeError, FormatError: operands that do not fit the program.
        """
        return self._call(operands)

    def _first_call(self, operands: tuple[Operand, ...]) -> Any:
        """The results; later calls take the fast path."""
        results = self._long_way(operands, None)
        self._call = fast_call.shortcut(self._long_way, may_have_strides=has_interior(self.program))
        return results

    def _first_results(self, operands: tuple[Operand, ...]) -> Any:
        """The results, not differentiable; later calls take the fast path."""
        results = self._run_steps(operands)
        self.results = (
            self._whole.compute
            if self._whole is not None
            else fast_call.shortcut(self._run_all, may_have_strides=has_interior(self.program))
        )
        return results

    def _long_way(self, operands: tuple[Operand, ...], learn: fast_call.Learn) -> Any:
        """The results for any operands by the slow path, which stores the frame for the fast path."""
        # The guard makes reads of sparse operands' attributes bypass `__torch_function__`.
        with torch._C.DisableTorchFunctionSubclass():
            if len(operands) != len(self._names):
                raise ShapeError(f"{len(operands)} operands for {', '.join(self._names)}")
            if tracing.is_traced(operands):
                return tracing.call(self, operands)
            if torch._C._are_functorch_transforms_active():
                return functorch.call(self, operands)
            if have_tangents(operands):
                return functorch.call_forward(self, operands)
            for operand in operands:
                if operand.numel() == 0:
                    kernel = self._without_coordinates(operands)
                    if kernel is not self:
                        return kernel._long_way(operands, None)
                    break
            if torch.is_grad_enabled():
                for operand in operands:
                    if operand.requires_grad:
                        results = Differentiable.apply(self, *operands)  # type: ignore[no-untyped-call]
                        break
                else:
                    results = self.results(operands)
            else:
                results = self.results(operands)
            if learn is not None:
                self.teach(learn, operands)
            return results

    def _without_coordinates(self, operands: tuple[Operand, ...]) -> "Kernel":
        """The kernel for operands with modes of extent 0: some reductions over empty modes need another plan."""
        from sparsify.compiler.plan.plan import starts_otherwise

        places = tuple(
            [
                (name, mode)
                for name, operand in zip(self._names, operands, strict=True)
                for mode, extent in enumerate(operand.shape)
                if extent == 0
            ]
        )
        if places not in self._empties:
            sizes = sizes_of(self.program, operands)
            found = self
            if self.schedule is None and starts_otherwise(self.program, sizes):
                found = _plan(self.program, None, self._settings(), sizes)
            self._empties[places] = found._empties[places] = found
        return self._empties[places]

    def teach(
        self, learn: Callable[[int], None], operands: tuple[Operand, ...], order: Sequence[int] = ()
    ) -> None:
        """Stores the frame of a call with such operands; `order[n]` is the operand's index of the program's input n."""
        if not self.has_frames:
            return
        arguments = tuple(order or range(len(operands)))
        kernel, given = self, [operands[place] for place in arguments]
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in given):
            kept = self.kept.get((False, *[operand.requires_grad for operand in given]))
            kernel = self if kept is None else kept.forward
        self._learn(learn, operands, plan_of(kernel, given, arguments, self))

    def _learn(self, learn: Callable[[int], None], operands: tuple[Operand, ...], plan: Plan | None) -> None:
        """Stores the frame of a plan, or counts a call that no frame holds."""
        frame = None if plan is None else fast_call.frame(operands, plan)
        self._refusals = 0 if frame is not None else self._refusals + 1
        if frame is not None:
            learn(ctypes.addressof(frame))

    def _run_all(self, operands: tuple[Operand, ...], learn: fast_call.Learn) -> Any:
        """The results of all steps, not differentiable; the frame is stored for the fast path."""
        with torch._C.DisableTorchFunctionSubclass():
            results = self._run_steps(operands)
            if learn is not None and self.has_frames:
                self._learn(learn, operands, plan_of(self, operands, range(len(operands)), None))
            return results

    def _run_steps(self, operands: tuple[Operand, ...]) -> Any:
        """The results, by running all steps."""
        values = self._tensors(operands)
        if len(self._results) == 1:
            return values[self._result_slots[0]]
        return tuple([values[slot] for slot in self._result_slots])

    def adjoint(self, wrt: tuple[str, ...]) -> "Kernel":
        """The kernel of the adjoint program: gradients of the inputs `wrt` from `g_` and the results' names.

        The first call compiles the kernel.
        """
        from sparsify.compiler.einsum.gradient.adjoint import adjoint
        from sparsify.compiler.plan.fuse.experts import mixture_adjoint
        from sparsify.compiler.plan.rematerialize import wide

        if wrt not in self._adjoints:
            gradients = {name: f"g_{name}" for name in self.program.outputs}
            program = mixture_adjoint(self.program, wrt, gradients, self.sizes.extents) or adjoint(
                self.program, wrt, gradients, self.keeping.again
            )
            given = {*self.program.inputs, *self.program.outputs, *gradients.values()}
            kept = set(program.inputs) - given
            self._adjoints[wrt] = _plan(wide(program, kept), None, self._settings(), self.sizes)
        return self._adjoints[wrt]

    def dense_adjoint(self, wrt: tuple[str, ...]) -> "Kernel":
        """The adjoint of the program with the inputs `wrt` stored densely: gradients also at unstored coordinates."""
        if wrt not in self._dense_adjoints:
            program = self.program
            declarations = tuple(
                replace(d, format=Format(", ".join(["dense"] * d.format.rank))) if d.name in wrt else d
                for d in program.declarations
            )
            made = _plan(replace(program, declarations=declarations), None, self._settings(), self.sizes)
            self._dense_adjoints[wrt] = made.adjoint(wrt)
        return self._dense_adjoints[wrt]

    @cached_property
    def keeping(self) -> "Keeping":
        """Temporaries saved for the gradients, and temporaries rematerialized by the backward pass."""
        from sparsify.compiler.plan.rematerialize import keeping

        return keeping(self.program, self.sizes)

    def also(self, names: tuple[str, ...]) -> "Kernel":
        """The kernel with the results of this one, followed by the given temporaries."""
        from sparsify.compiler.plan.rematerialize import with_results

        program = with_results(self.program, names, copied=len(self.steps) == 1)
        return _plan(program, self.schedule, self._settings(), self.sizes)

    def temporaries(self, names: tuple[str, ...]) -> "Kernel":
        """The kernel that computes only the given temporaries of the program, from the same operands."""
        from sparsify.compiler.einsum.gradient.program import needed
        from sparsify.compiler.plan.rematerialize import wide

        if names not in self._temporaries:
            program = self.program
            statements = tuple(needed(program.statements, names))
            kept = {*program.inputs, *(statement.target.tensor for statement in statements)}
            declarations = tuple(d for d in program.declarations if d.name in kept)
            part = replace(program, statements=statements, declarations=declarations, outputs=names)
            self._temporaries[names] = _plan(wide(part, names), self.schedule, self._settings(), self.sizes)
        return self._temporaries[names]

    def run(self, operands: tuple[Operand, ...]) -> dict[str, Operand]:
        """All tensors by name: operands, temporaries of the plan, results."""
        return dict(zip(self._slots, self._tensors(operands), strict=True))

    def _tensors(self, operands: tuple[Operand, ...]) -> list[Operand]:
        """All tensors by slot."""
        if not runs_natively(operands):
            return self._tensors_elsewhere(operands)
        if not self.is_prepared and len(self.generated) > 1:
            self.prepare(sizes_of(self.program, operands))
        values: list[Any] = [*operands, *[None] * (len(self._slots) - len(operands))]
        for step, read, written in self._moves:
            found = step.compute(read(values))
            if isinstance(written, int):
                values[written] = found
            else:
                for slot, value in zip(written, found, strict=True):
                    values[slot] = value
        return values

    def _tensors_elsewhere(self, operands: tuple[Operand, ...]) -> list[Any]:
        """Operands on another device and the results by slot, without temporaries."""
        results = substitute.computed_elsewhere(self.program, operands, self._settings())
        listed = results if isinstance(results, tuple) else (results,)
        names = (*self._names, *self._results)
        known = dict(zip(names, (*operands, *listed), strict=True))
        return [known.get(name) for name in self._slots]


def compile_program(
    program: Program,
    schedule: Schedule | str | None = None,
    options: Options | None = None,
    sizes: Sizes = UNKNOWN,
) -> Kernel:
    """The kernel of a program; existing kernels are found in memory or on disk.

    Args:
        program: result of `einsum.declare.declare`.
        schedule: schedule of the whole program as one kernel; by default each statement gets a schedule.
        options: by default the options in force.
        sizes: sizes of expected operands, for the choice of a schedule; operands of other sizes are accepted too.

    Raises:
        ScheduleError: the schedule does not fit.
        UnsupportedProgramError: the program cannot be compiled yet.
        CompilerError: there is no compiler, or it failed.
    """
    kernel = plan(program, schedule, options, sizes)
    kernel.prepare(sizes)
    return kernel


def plan(
    program: Program,
    schedule: Schedule | str | None = None,
    options: Options | None = None,
    sizes: Sizes = UNKNOWN,
) -> Kernel:
    """The kernel of a program before compilation; arguments as those of `compile_program`."""
    text = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    return _plan(program, text, options or current(), sizes)


def planned(program: Program, plan: Sequence[TorchStep | Step]) -> Kernel:
    """The uncompiled kernel of a program with given steps, `plan.joined` or `plan.apart`."""
    options = current()
    return _planned(program, tuple(plan), None, options, target.vector_bytes(options))


def _chooser(slots: list[int]) -> Chooser:
    """Function that selects the tensors in these slots."""
    if len(slots) < 2:
        return lambda values: tuple([values[slot] for slot in slots])
    return itemgetter(*slots)


def _plan(program: Program, schedule: Schedule | None, options: Options, sizes: Sizes) -> Kernel:
    """The uncompiled kernel of a program; programs with the same steps share one."""
    from sparsify.compiler.plan.plan import steps
    from sparsify.compiler.plan.rematerialize import with_wide_rows

    program = with_wide_rows(program)
    if schedule is None:
        plan = _steps(program, sizes, options)
    else:
        plan = steps(program, sizes, scheduled=True, order=schedule.order)
    return _planned(program, plan, schedule, options, target.vector_bytes(options))


def _steps(program: Program, sizes: Sizes, options: Options) -> tuple[TorchStep | Step, ...]:
    """The steps of a program, from the decision cache if known."""
    from sparsify.compiler.einsum.register import definitions
    from sparsify.compiler.plan.plan import steps

    question = (
        f"steps of {program!r} {definitions(program)} for vectors of {target.vector_bytes(options)} bytes"
    )
    return recall(question, sizes, partial(steps, program, sizes), options, classes=STEP_CLASSES)


@cache
def _planned(
    program: Program,
    plan: tuple[TorchStep | Step, ...],
    schedule: Schedule | None,
    options: Options,
    vector_bytes: int,
) -> Kernel:
    """The uncompiled kernel of a plan."""
    return Kernel(
        program,
        tuple(
            step
            if isinstance(step, TorchStep)
            else GeneratedStep(step, Variants(step, schedule, vector_bytes, options), options)
            for step in plan
        ),
        schedule,
        options,
    )


def result_index_dtypes(format_: Format, dtype: str = "int32") -> tuple[tuple[str, str], ...]:
    """Index dtypes of the arrays of a tensor in this format, `dtype` unless a level fixes its own."""
    found = []
    for stored in format_.levels:
        pos, crd = (
            getattr(stored.level, role, None) or dtype if role in stored.level.arrays else ""
            for role in ("pos", "crd")
        )
        found.append((pos, crd))
    return tuple(found)
