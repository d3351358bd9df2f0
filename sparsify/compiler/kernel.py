"""Kernels: a program compiled to a plan of steps, and the call that runs it on tensors.

In: `compile_program(program)` and operands in the order of `program.inputs`. Out: the results, differentiable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from sparsify.compiler import native
from sparsify.compiler.cpp import cache as kernels
from sparsify.compiler.cpp import target
from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.lower import lower
from sparsify.compiler.loops.lower.assemble import is_assembled
from sparsify.compiler.loops.simplify import simplify
from sparsify.compiler.loops.verify import verify
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.plan import DenseProduct, Step, steps
from sparsify.compiler.schedule.apply import apply
from sparsify.compiler.schedule.choose import candidates
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import (
    DiscordantError,
    DtypeError,
    FormatError,
    ScheduleError,
    ShapeError,
    UnsupportedProgramError,
)
from sparsify.options import Options, current
from sparsify.runtime import threads
from sparsify.storage.convert import conversion, permuted
from sparsify.storage.format import Format
from sparsify.storage.levels import Dense
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

Operand = torch.Tensor


@dataclass(frozen=True)
class Stages:
    """A step on its way: what `explain` shows."""

    program: Program
    schedule: Schedule
    notation: Notation
    loops: loops.Function
    cpp: str


class Kernel:
    """A compiled program.

    Attributes:
        program: what it computes.
        steps: its steps in order, generated kernels and products of torch.
        key: of the generated kernels in the cache, shortened.
        cache: `hit` when all kernels were found, `miss` when one was built.
    """

    def __init__(self, program: Program, plan: tuple["DenseProduct | GeneratedStep", ...]) -> None:
        self.program, self.steps = program, plan
        generated = [step for step in plan if isinstance(step, GeneratedStep)]
        self.key = "+".join(step.library.key[:12] for step in generated) or "torch"
        self.cache = "miss" if any(step.library.origin == "compiled" for step in generated) else "hit"
        self.estimated_us: float | None = None
        self.adjoints: dict[tuple[str, ...], Kernel] = {}

    def __call__(self, *operands: Operand) -> Any:
        """The results for operands in the order of `program.inputs`; one result is not in a tuple.

        Raises:
            ShapeError, DtypeError, FormatError: operands that do not fit the program.
        """
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
            from sparsify.compiler.differentiate import differentiable

            return differentiable(self, operands)
        return self.only(self.run(operands))

    def only(self, values: Mapping[str, Operand]) -> Any:
        """The results of the program among all values."""
        results = tuple(values[name] for name in self.program.outputs)
        return results[0] if len(results) == 1 else results

    def run(self, operands: tuple[Operand, ...]) -> dict[str, Operand]:
        """All tensors by name: operands, temporaries of the plan, results."""
        if len(operands) != len(self.program.inputs):
            raise ShapeError(f"{len(operands)} operands for {', '.join(self.program.inputs)}")
        values: dict[str, Operand] = dict(zip(self.program.inputs, operands, strict=True))
        for step in self.steps:
            if isinstance(step, DenseProduct):
                values[step.result] = step(values[step.left], values[step.right])
            else:
                values[step.result] = step(values)
        return values


class GeneratedStep:
    """A statement as a generated kernel: how its sizes and buffers come from tensors."""

    def __init__(self, step: Step, stages: Stages, library: kernels.Library, options: Options) -> None:
        self.step, self.stages, self.library, self.options = step, stages, library, options
        self.program, self.result = step.program, step.result
        self.twins = dict(step.twins)
        self.call = native.bind(library)
        self.output = self.program.declaration(self.result)
        self.constants = dict(self.program.extents)
        self.inputs = [self.program.declaration(name) for name in self.program.inputs]
        self.sizes = stages.loops.sizes
        self.grown = is_assembled(self.output)

    def __call__(self, values: Mapping[str, Operand]) -> Operand:
        """The result of the statement."""
        sizes: dict[str, int] = {"serial_threshold": self.options.serial_threshold}
        buffers: list[torch.Tensor | None] = []
        extents: dict[str, int] = dict(self.constants)
        for declared in self.inputs:
            value = values[declared.name]
            self._match(declared, value, extents)
            if declared.format.is_dense:
                if isinstance(value, SparseTensor):
                    raise FormatError(
                        f"{declared.name} is sparse and was dense when compiled", "value.to_dense()"
                    )
                buffers.append(value.detach().contiguous())
                continue
            if not isinstance(value, SparseTensor):
                raise FormatError(
                    f"{declared.name} is dense and was {declared.format} when compiled", "sparsify.tensor"
                )
            sizes[f"{declared.name}_nnz"] = self._sparse_buffers(declared, value, buffers)
        sizes.update((f"{name}_extent", extent) for name, extent in extents.items())
        shape = tuple(extents[name] for name in self.output.extents)
        dtype = getattr(torch, self.output.dtype)
        if self.grown:
            return self._grow(sizes, buffers, shape)
        if self.output.pattern_of is None:
            result = torch.empty(shape, dtype=dtype)
            self._run(sizes, (*buffers, result), None)
            return result
        root = values[self.output.pattern_of]
        assert isinstance(root, SparseTensor)
        stored = torch.empty(root.pattern.nnz, dtype=dtype)
        self._run(sizes, (*buffers, stored), None)
        return SparseTensor(root.pattern, stored, self.output.fill)

    def _run(self, sizes: dict[str, int], buffers: tuple[torch.Tensor | None, ...], allocator: Any) -> None:
        count = threads.count(self.options)
        self.call(tuple(sizes[name] for name in self.sizes), buffers, count, allocator)

    def _match(self, declared: Declaration, value: Operand, extents: dict[str, int]) -> None:
        """Checks dtype and shape, and learns the extents."""
        if value.dtype != getattr(torch, declared.dtype):
            raise DtypeError(f"{declared.name} has dtype {value.dtype}, the kernel takes {declared.dtype}")
        if len(value.shape) != len(declared.extents):
            raise ShapeError(
                f"{declared.name} has {len(value.shape)} modes, the kernel takes {len(declared.extents)}"
            )
        for mode, (name, size) in enumerate(zip(declared.extents, value.shape, strict=True)):
            if extents.setdefault(name, size) != size:
                raise ShapeError(
                    f"{declared.name} has extent {size} in mode {mode}, and {name} is {extents[name]} elsewhere"
                )

    def _sparse_buffers(
        self, declared: Declaration, value: SparseTensor, buffers: list[torch.Tensor | None]
    ) -> int:
        """The arrays of a sparse operand in the order of its levels; the number of stored entries."""
        pattern, stored = value.pattern, value.values().detach()
        if pattern.format != declared.format:
            if declared.name not in self.twins and not _same_order(pattern.format, declared.format):
                raise FormatError(
                    f"{declared.name} is stored {pattern.format}, the kernel takes {declared.format}",
                    f"value.to(format={str(declared.format)!r})",
                )
            found = conversion(pattern, declared.format)
            stored, pattern = permuted(stored, found, value.fill), found.pattern
        for number, (pos, crd) in enumerate(declared.index_dtypes):
            for array, dtype in ((pattern.pos[number], pos), (pattern.crd[number], crd)):
                if array is not None:
                    buffers.append(_as_dtype(pattern, array, dtype))
        buffers.append(stored.contiguous())
        return pattern.nnz

    def _grow(
        self, sizes: dict[str, int], buffers: list[torch.Tensor | None], shape: tuple[int, ...]
    ) -> Operand:
        """A result whose pattern the kernel finds."""
        made: dict[int, torch.Tensor] = {}
        arguments = self.stages.loops.buffers

        def allocate(slot: int, size: int) -> torch.Tensor:
            dtype = getattr(torch, arguments[slot].dtype)
            made[slot] = torch.empty(size // dtype.itemsize, dtype=dtype)
            return made[slot]

        missing = (None,) * (len(arguments) - len(buffers))
        self._run(sizes, (*buffers, *missing), allocate)
        by_name = {arguments[slot].name: array for slot, array in made.items()}
        pos, crd = [], []
        for number, _ in enumerate(self.output.format.levels, 1):
            pos.append(by_name.get(f"{self.result}{number}_pos"))
            crd.append(by_name.get(f"{self.result}{number}_crd"))
        pattern = Pattern(self.output.format, shape, pos, crd)
        return SparseTensor(pattern, by_name[f"{self.result}_vals"], self.output.fill)


def _same_order(first: Format, second: Format) -> bool:
    """Whether two formats differ at most in dtypes of their arrays."""
    return [type(s.level) for s in first.levels] == [type(s.level) for s in second.levels] and [
        s.expression for s in first.levels
    ] == [s.expression for s in second.levels]


def _as_dtype(pattern: Pattern, array: torch.Tensor, dtype: str) -> torch.Tensor:
    """The array in the dtype that the kernel was compiled for; conversions are kept on the pattern."""
    wanted = getattr(torch, dtype)
    if array.dtype == wanted:
        return array
    return pattern.cached(("array", array.data_ptr(), dtype), lambda: array.to(wanted))


def compile_program(
    program: Program, schedule: Schedule | str | None = None, options: Options | None = None
) -> Kernel:
    """The kernel of a program; kernels that exist are found in memory or on disk.

    Args:
        program: as `einsum.declare.declare` makes it.
        schedule: for a program of one statement, instead of the chosen one.
        options: by default those in force.

    Raises:
        ScheduleError: the schedule does not fit.
        UnsupportedProgramError: the program cannot be compiled yet.
        CompilerError: there is no compiler, or it failed.
    """
    text = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    options = options or current()
    asked = _compile.cache_info().misses
    kernel = _compile(program, text, options, target.vector_bytes(options))
    if _compile.cache_info().misses == asked:
        kernel.cache = "hit"  # an earlier request built it
    return kernel


@cache
def _compile(program: Program, schedule: Schedule | None, options: Options, vector_bytes: int) -> Kernel:
    plan: list[DenseProduct | GeneratedStep] = []
    for step in steps(program, scheduled=schedule is not None):
        if isinstance(step, DenseProduct):
            plan.append(step)
            continue
        stages = compile_stages(step, schedule, vector_bytes)
        parts = {"schedule": str(stages.schedule)}
        plan.append(GeneratedStep(step, stages, kernels.library(stages.cpp, parts, options), options))
    return Kernel(program, tuple(plan))


def compile_stages(step: Step, schedule: Schedule | None, vector_bytes: int) -> Stages:
    """The step through all stages up to C++: with the given schedule, or the first candidate that lowers."""
    plain = concretize(step.program)
    if schedule is not None:
        return _lowered(step.program, plain, schedule, vector_bytes)
    item_bytes = getattr(torch, step.program.declaration(step.result).dtype).itemsize
    lanes = max(1, vector_bytes // item_bytes)
    refusal: Exception | None = None
    for candidate in candidates(plain, lanes, item_bytes):
        try:
            return _lowered(step.program, plain, candidate, vector_bytes)
        except (ScheduleError, DiscordantError) as error:
            refusal = refusal or error
    raise UnsupportedProgramError(f"no loop order computes `{step.program.statements[0]}`: {refusal}")


def _lowered(program: Program, plain: Notation, schedule: Schedule, vector_bytes: int) -> Stages:
    scheduled = apply(plain, schedule)
    function = simplify(lower(scheduled, vector_bytes))
    verify(function)
    return Stages(program, schedule, scheduled, function, emit(function))


def index_dtypes(pattern: Pattern) -> tuple[tuple[str, str], ...]:
    """Per level the dtypes of (pos, crd), "" where there is no array: what a declaration says."""

    def name(array: torch.Tensor | None) -> str:
        return "" if array is None else str(array.dtype).removeprefix("torch.")

    return tuple((name(pos), name(crd)) for pos, crd in zip(pattern.pos, pattern.crd, strict=True))


def result_index_dtypes(format_: Format, dtype: str = "int32") -> tuple[tuple[str, str], ...]:
    """The dtypes of the arrays of a new tensor in this format."""
    found = []
    for stored in format_.levels:
        has_pos = hasattr(stored.level, "pos")
        found.append(("", "") if isinstance(stored.level, Dense) else (dtype if has_pos else "", dtype))
    return tuple(found)
