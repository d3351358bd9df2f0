"""A generated kernel as a step: sizes and buffers from tensors.

In: `step({"A": A, "x": x})`. Out: `y`, written by one foreign call.

A kernel is chosen once for a size class; facts about shapes are memoized by combination of shapes, facts about a
pattern by pattern; a repeated call looks everything up and fills in addresses.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import torch

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.cache import Library
from sparsify.compiler.einsum.infer.extents import accesses, check_indices
from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.nodes import Declaration, Index, Program
from sparsify.compiler.ir.status import POSITION_OVERFLOW
from sparsify.compiler.kernel import fast_call, substitute
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.compiler.kernel.sparse_result import Assembled
from sparsify.compiler.kernel.variants import Signature, Variant, Variants
from sparsify.compiler.operands.arguments import (
    DenseInput,
    SparseInput,
    laid_out,
    match_extents,
    patterns_of,
)
from sparsify.compiler.operands.renumber_coordinates import compact, compact_sizes, compactable, large
from sparsify.compiler.plan.step import Step, with_wide_result
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.size_class import PatternClass, PatternClasses, Range, held
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.errors import CompilerError, KernelError
from sparsify.options import Options
from sparsify.runtime.buffers import POOL
from sparsify.runtime.padded_memory import PADDED
from sparsify.runtime.threads import count
from sparsify.storage.convert import conversion
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

if TYPE_CHECKING:
    from sparsify.compiler.pipeline import Stages

Shape = tuple[int, ...]
Shared = tuple[PatternClass, ...]
Key = tuple[tuple[Shape, ...], Shared]
REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for a size class.

    Attributes:
        ranges: smallest and largest extent by name.
        shared: classes of the operands' patterns.
        variant: kernel.
    """

    ranges: Mapping[str, Range]
    shared: Shared
    variant: Variant

    def holds(self, extents: Mapping[str, int], shared: Shared) -> bool:
        """Whether operands with these extents and patterns belong to the class."""
        if shared != self.shared:
            return False
        return all(low <= extents[name] <= high for name, (low, high) in self.ranges.items())


@dataclass(frozen=True, slots=True)
class Frame:
    """Sizes, result and kernel of calls with equal operand shapes and classes of patterns.

    Attributes:
        sizes: sizes of the kernel, numbers of stored entries still 0.
        shape: shape of the result.
        empty: allocator of a dense result.
        choice: kernel, and its size class.
        several: shapes and allocators of all results, for more than one result.
    """

    sizes: tuple[int, ...]
    shape: Shape
    empty: Callable[[], torch.Tensor]
    choice: Choice
    several: tuple[tuple[Shape, Callable[[], torch.Tensor]], ...] = ()

    @property
    def call(self) -> foreign_call.Call:
        """The function that runs the kernel."""
        return self.choice.variant.call


class GeneratedStep:
    """A statement as generated kernels; the first call with new shapes chooses a kernel.

    Args:
        step: statement, and operands read in another format.
        variants: kernels of the statement.
        options: threads and the threshold below which a kernel is serial.

    Attributes:
        current: last requested kernel.
        inputs: operands as the kernels read them, once a kernel is known.
        failure: reason that no kernel can be built and torch's operators compute the step, `None` without a failure.
        compute: function from operands in the order of `operands` to the result; several results are in a tuple. Raises
            ShapeError, DtypeError and FormatError for an operand that does not fit the program.
    """

    def __init__(self, step: Step, variants: Variants, options: Options) -> None:
        self.step, self.variants, self.options = step, variants, options
        self.program, self.result = step.program, step.result
        self.twins = {twin.name: twin.source for twin in step.twins}
        self.operands = tuple(self.twins.get(name, name) for name in self.program.inputs)
        self.results = self.program.outputs
        self.output = self.program.declaration(self.result)
        self._declared = tuple(self.program.declaration(name) for name in self.program.inputs)
        self._turned = tuple(name in self.twins for name in self.program.inputs)
        self._classes = tuple(PatternClasses(is_turned) for is_turned in self._turned)
        self._dtype = getattr(torch, self.output.dtype)
        self._is_assembled = self.output.is_assembled
        self._compactable = compactable(self.program) if self._is_assembled else frozenset()
        self._is_plain = self.output.format.ordering == tuple(range(len(self.output.extents)))
        self._outputs = tuple(self.program.declaration(name) for name in self.results)
        root = self.output.pattern_of
        self._root = None if root is None else self.program.inputs.index(root)
        self._frames: dict[Key, Frame] = {}
        self._choices: list[Choice] = []
        self.compute: Callable[[tuple[torch.Tensor, ...]], Any] = self._first_call
        self.failure: CompilerError | None = None
        self._current: Variant | None = None
        self.inputs: tuple[DenseInput | SparseInput, ...] = ()
        self._known: tuple[object, ...] = ()
        self._signature: Signature = ((), ())
        self._found: Assembled | None = None

    def prepare(self, sizes: Sizes) -> bool:
        """Compiles the kernel for operands of these sizes; true if a kernel had to be built.

        Without a compiler, or after a failed build, `failure` holds the error: torch's operators compute the step from
        then on.

        Raises:
            ScheduleError, UnsupportedProgramError: the schedule does not fit, or none does.
            CompilerError: the compiler is missing or failed, and the options are strict.
        """
        if self.failure is not None or (sizes is UNKNOWN and self._current is not None):
            return False
        sizes = self.sizes_as_read(sizes)
        known = sizes.key(self.program)
        if known == self._known:
            return False
        before = self.variants.built
        try:
            found = self.variants.best(sizes)
        except CompilerError as error:
            if self.options.strict:
                raise
            self.failure = error
            return False
        signature = found.signature
        if self._current is None:
            self._signature = signature
            self.inputs = tuple(
                DenseInput(d, d.name in self.twins)
                if d.format.is_dense
                else SparseInput(d, classes, signature[0])
                for d, classes in zip(self._declared, self._classes, strict=True)
            )
            if self._is_assembled:
                dtypes = [(buffer.name, getattr(torch, buffer.dtype)) for buffer in signature[1]]
                self._found = Assembled(self, self.output, signature[0], dtypes)
        assert signature == self._signature, "all kernels of a statement take the same arguments"
        self._current, self._known = found, known
        return self.variants.built > before

    def sizes_as_read(self, sizes: Sizes) -> Sizes:
        """The sizes of the operands as the kernels read them: transposed copies, renumbered coordinates."""
        return compact_sizes(self._compactable, sizes.also(self.twins))

    def with_schedule(self, schedule: Schedule | None) -> "GeneratedStep":
        """The same statement with the given schedule only, or with automatic choices, without memoized state."""
        given = self.variants
        return GeneratedStep(
            self.step, Variants(self.step, schedule, given.vector_bytes, given.options), self.options
        )

    def prefer(self, schedule: Schedule, sizes: Sizes) -> None:
        """Fixes a benchmarked schedule for operands in the size class of `sizes`, from the next call on."""
        self.variants.prefer(schedule, self.sizes_as_read(sizes))
        self._known = ()
        self._frames.clear()
        self._choices.clear()
        self.compute = self._first_call

    @cached_property
    def is_simple(self) -> bool:
        """Whether the fast path calls the kernel: all inputs are read, and all results written, in place."""
        for output in self._outputs:
            if output.pattern_of is not None:
                is_turned = self._turned[self.program.inputs.index(output.pattern_of)]
                if is_turned or self._has_further_modes(output):
                    return False
            elif not self._is_assembled and output.format.ordering != tuple(range(len(output.extents))):
                return False
        return all(DenseInput(d).format is None for d in self._declared if d.format.is_dense)

    def _has_further_modes(self, output: Declaration) -> bool:
        """Whether a result has more modes than the operand whose pattern it shares."""
        root = self.program.declaration(output.pattern_of or output.name)
        return len(root.extents) < len(output.extents)

    def _pattern_of(
        self, output: Declaration, operands: Sequence[torch.Tensor], shape: Sequence[int]
    ) -> Pattern:
        """The pattern of a result that shares the pattern of an operand."""
        root = self.program.inputs.index(output.pattern_of or "")
        pattern: Pattern = operands[root]._pattern  # type: ignore[attr-defined]
        if self.inputs[root].is_twin:
            is_below = self._has_further_modes(output)
            pattern = conversion(pattern, self._declared[root].format if is_below else output.format).pattern
        return shared_pattern(pattern, output.format, shape)

    @property
    def current(self) -> Variant:
        """The last requested kernel."""
        if self._current is None:
            self.prepare(UNKNOWN)
        if self.failure is not None:
            raise self.failure
        assert self._current is not None, "preparing finds it"
        return self._current

    @property
    def key(self) -> str:
        """The shortened cache key of the kernel; `torch` if torch's operators compute."""
        return "torch" if self.failure is not None else self.library.key[:12]

    @cached_property
    def wide(self) -> "GeneratedStep | None":
        """The same step with int64 positions and coordinates in the result, `None` if they are int64 already."""
        step = with_wide_result(self.step)
        if step is None:
            return None
        given = self.variants
        variants = Variants(step, given.schedule, given.vector_bytes, given.options)
        return GeneratedStep(step, variants, self.options)

    @property
    def stages(self) -> "Stages":
        """The stages from statement to C++, also if no kernel can be built."""
        return self.variants.stages(UNKNOWN) if self.failure is not None else self.current.stages

    @property
    def library(self) -> Library:
        """The kernel on disk."""
        return self.current.library

    def _first_call(self, operands: tuple[torch.Tensor, ...]) -> Any:
        """The result; later calls take the fast path."""
        result = self._long_way(operands, None)
        if self.is_simple:
            self.compute = fast_call.shortcut(self._long_way, may_have_strides=has_interior(self.program))
        else:
            self.compute = partial(self._long_way, learn=None)
        return result

    def _long_way(self, operands: tuple[torch.Tensor, ...], learn: fast_call.Learn) -> Any:
        """The result for any operands by the slow path, which stores the frame for the fast path."""
        with torch._C.DisableTorchFunctionSubclass():
            result = self._compute(operands)
            if learn is not None:
                self.teach(learn, operands)
            return result

    def teach(self, learn: Callable[[int], None], operands: tuple[torch.Tensor, ...]) -> None:
        """Stores the frame of a call with such operands for the fast path, by the callback `learn`."""
        stage = self.stage(operands, range(len(operands))) if self.is_simple else None
        if stage is None or not isinstance(stage.run, fast_call.KernelCall):
            return
        results = tuple(range(len(operands), len(operands) + len(self._outputs)))
        frame = fast_call.frame(operands, fast_call.Plan((stage,), results))
        if frame is not None:
            learn(ctypes.addressof(frame))

    def stage(self, operands: Sequence[torch.Tensor], slots: Sequence[int]) -> fast_call.Stage | None:
        """The step as a stage of calls with such operands: as a kernel if possible, else as a Python function.

        Args:
            operands: operands of the step; tensors of equal shapes and patterns do as well.
            slots: slot of each operand.

        Returns:
            `None` if the kernel of such operands is unknown.
        """
        known = self._known_frame(operands)
        if known is None:
            return None
        patterns = [operand._pattern if isinstance(operand, SparseTensor) else None for operand in operands]
        inputs = tuple(map(fast_call.Read, slots, self.inputs, patterns))
        ranges = known.choice.ranges
        count = len(self._outputs)
        if not self.is_simple or self._turns(operands):
            return fast_call.Stage(inputs, self.compute, count, ranges)
        sizes = tuple(
            [
                extent if (extent := name.removesuffix("_extent")) in ranges else size
                for name, size in zip(self._signature[0], known.sizes, strict=True)
            ]
        )
        assembly = None if self._found is None else self._found.assembly(known.shape)
        results = []
        for output in self._outputs:
            dtype = getattr(torch, output.dtype)
            root = None if output.pattern_of is None else self.program.inputs.index(output.pattern_of)
            empty = partial(self._stored, dtype=dtype) if root is not None else allocator(output)
            slot = None if root is None else slots[root]
            is_inside = output.interior is not None
            results.append(
                fast_call.Result(output.extents, dtype, slot, output.fill, empty, assembly, is_inside)
            )
        address, threads = known.choice.variant.library.address, self.options.threads or 0
        call = fast_call.KernelCall(address, sizes, threads, tuple(results))
        return fast_call.Stage(inputs, call, count, ranges)

    def examples(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Tensors without memory in the shapes and patterns of the results; `None` where these are unknown."""
        known = self._known_frame(operands)
        if known is None or self._is_assembled or not self.is_simple:
            return [None] * len(self._outputs)
        shapes = [shape for shape, _ in known.several] or [known.shape]
        found: list[torch.Tensor | None] = []
        for output, shape in zip(self._outputs, shapes, strict=True):
            dtype = getattr(torch, output.dtype)
            if output.pattern_of is None:
                found.append(torch.empty(shape, dtype=dtype, device="meta"))
            else:
                pattern = self._pattern_of(output, operands, shape)
                found.append(wrap(pattern, torch.empty(pattern.nnz, dtype=dtype, device="meta"), output.fill))
        return found

    def _known_frame(self, operands: Sequence[torch.Tensor]) -> Frame | None:
        """The frame of calls with such operands, if their kernel is known."""
        key = self._key(operands)
        found = self._frames.get(key)
        if found is not None or self._compactable:
            return found
        extents: dict[str, int] = dict(self.program.extents)
        for declared, operand in zip(self._declared, operands, strict=True):
            match_extents(declared, operand.shape, extents)
        is_known = any(choice.holds(extents, key[1]) for choice in self._choices)
        return self._frame(key, operands) if is_known else None

    def _key(self, operands: Sequence[torch.Tensor]) -> Key:
        """The shapes of operands and the classes of their patterns, the key of the frame."""
        shapes = tuple([operand.shape for operand in operands])
        read = zip(operands, self._classes, strict=True)
        return shapes, tuple([classes.of(o._pattern) for o, classes in read if isinstance(o, SparseTensor)])

    def _turns(self, operands: Sequence[torch.Tensor]) -> bool:
        """Whether the kernel reads values of some operand in another order, which each call permutes."""
        for operand, declared in zip(operands, self.inputs, strict=True):
            if isinstance(operand, SparseTensor) and isinstance(declared, SparseInput):
                kept = operand._pattern.recall(declared)
                if kept is not None and kept[2] is not None:
                    return True
        return False

    def _compute(self, operands: Sequence[torch.Tensor]) -> Any:
        """The results for any operands."""
        if not runs_natively(operands):
            return substitute.computed_elsewhere(self.program, operands, self.options)
        if self._compactable and (found := large(self._compactable, self._declared, operands)):
            return self._compacted(operands, found)
        return self._as_they_are(operands)

    def _as_they_are(self, operands: Sequence[torch.Tensor]) -> Any:
        """The results for operands without renumbered coordinates."""
        key = self._key(operands)
        frame = self._frames.get(key) or self._frame(key, operands)
        if frame is None:
            return substitute.computed(self.program, operands, self.failure, self.options)
        if self._is_assembled:
            try:
                return self._assembled(operands, frame)
            except KernelError as error:
                if error.status != POSITION_OVERFLOW or self.wide is None:
                    raise
                return self.wide.compute(tuple(operands))
        sizes, buffers = self._read(operands, frame)
        if len(self._outputs) > 1:
            return self._several(operands, sizes, buffers, frame)
        if self._root is None:
            result = frame.empty()
            buffers.append(result)
            frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
            return result if self._is_plain else laid_out(result, self.output.format)
        pattern = self._pattern_of(self.output, operands, frame.shape)
        stored = self._stored(pattern, self._dtype)
        buffers.append(stored)
        frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
        return wrap(pattern, stored, self.output.fill)

    def _read(
        self, operands: Sequence[torch.Tensor], frame: Frame
    ) -> tuple[list[int], list[torch.Tensor | None]]:
        """The kernel's sizes, and the buffers of the operands."""
        sizes = list(frame.sizes)
        buffers: list[torch.Tensor | None] = []
        for operand, declared in zip(operands, self.inputs):
            declared.read(operand, sizes, buffers)
        return sizes, buffers

    def _stored(self, pattern: Pattern, dtype: torch.dtype) -> torch.Tensor:
        """Memory for the values of a result on a pattern."""
        made: Callable[[], torch.Tensor] = pattern.cached(
            (POOL, dtype), lambda: POOL.maker((pattern.nnz,), dtype)
        )
        return made()

    def _compacted(self, operands: Sequence[torch.Tensor], extents: frozenset[str]) -> torch.Tensor:
        """The result, computed from operands renumbered to the coordinates that occur."""
        places = [place for place, operand in enumerate(operands) if isinstance(operand, SparseTensor)]
        patterns = [operands[place]._pattern for place in places]  # type: ignore[attr-defined]
        found = KNOWN.find(self._compactable, patterns)
        if found is None:
            found = compact(extents, [self._declared[place] for place in places], patterns)
            KNOWN.remember(self._compactable, patterns, found, found.patterns)
        used = list(operands)
        for place, pattern in zip(places, found.patterns, strict=True):
            used[place] = wrap(pattern, used[place]._vals, used[place]._fill)  # type: ignore[attr-defined]
        result = self._as_they_are(used)
        sizes = dict(self.program.extents)
        for declared, operand in zip(self._declared, operands, strict=True):
            match_extents(declared, operand.shape, sizes)
        shape = [sizes[name] for name in self.output.extents]
        return wrap(found.spread(self.output, result._pattern, shape), result._vals, self.output.fill)

    def _frame(self, key: Key, operands: Sequence[torch.Tensor]) -> Frame | None:
        """Checks shapes, binds the extents and finds the kernel for such operands, if one can be built."""
        extents: dict[str, int] = dict(self.program.extents)
        for declared, operand in zip(self._declared, operands, strict=True):
            match_extents(declared, operand.shape, extents)
        choice = self._choice(extents, key[1], operands)
        if choice is None:
            return None
        known = {f"{name}_extent": extent for name, extent in extents.items()}
        known["serial_threshold"] = self.options.serial_threshold
        # Sizes of patterns are set when the operands are read.
        sizes = tuple([known.get(name, 0) for name in self._signature[0]])
        shape = tuple([extents[name] for name in self.output.extents])
        stored = shape
        if self.output.format.is_dense:
            stored = tuple([shape[mode] for mode in self.output.format.ordering])
        several = self._makers(extents) if len(self._outputs) > 1 else ()
        frame = Frame(sizes, shape, maker(self.output, stored), choice, several)
        if len(self._frames) >= REMEMBERED:
            self._frames.clear()
        self._frames[key] = frame
        return frame

    def _choice(
        self, extents: Mapping[str, int], shared: Shared, operands: Sequence[torch.Tensor]
    ) -> Choice | None:
        """The kernel for operands with these extents and patterns, `None` if none can be built."""
        for known in self._choices:
            if known.holds(extents, shared):
                return known
        check_indices(self.program, {d.name: o.shape for d, o in zip(self._declared, operands, strict=True)})
        self.prepare(sizes_of(self.program, operands))
        if self.failure is not None:
            return None
        ranges = {
            name: held(extent) if name in self._ranging else (extent, extent)
            for name, extent in extents.items()
        }
        made = Choice(ranges, shared, self.current)
        if len(self._choices) >= REMEMBERED:
            self._choices.clear()
        self._choices.insert(0, made)
        return made

    @cached_property
    def _ranging(self) -> frozenset[str]:
        """The extents that may vary within a size class.

        Computed indices are checked for each combination of extents, and an assembled result is bound to its shape.
        """
        indices = [index for access in accesses(self.program.statements) for index in access.indices]
        if self._is_assembled or any(not isinstance(index, Index) for index in indices):
            return frozenset()
        fixed = dict(self.program.extents)
        return frozenset(name for d in self._declared for name in d.extents if name not in fixed)

    def _makers(self, extents: Mapping[str, int]) -> tuple[tuple[Shape, Callable[[], torch.Tensor]], ...]:
        """The shape of each result, and the allocator of a dense one."""
        found = []
        for output in self._outputs:
            shape = tuple([extents[name] for name in output.extents])
            stored = (
                tuple([shape[mode] for mode in output.format.ordering]) if output.pattern_of is None else (0,)
            )
            found.append((shape, maker(output, stored)))
        return tuple(found)

    def _several(
        self,
        operands: Sequence[torch.Tensor],
        sizes: list[int],
        buffers: list[torch.Tensor | None],
        frame: Frame,
    ) -> tuple[torch.Tensor, ...]:
        """All results of a kernel with more than one."""
        results: list[torch.Tensor] = []
        for output, (shape, empty) in zip(self._outputs, frame.several, strict=True):
            if output.pattern_of is None:
                results.append(empty())
                buffers.append(results[-1])
                if output.format.ordering != tuple(range(len(shape))):
                    results[-1] = laid_out(results[-1], output.format)
                continue
            pattern = self._pattern_of(output, operands, shape)
            stored = torch.empty(pattern.nnz, dtype=getattr(torch, output.dtype))
            results.append(wrap(pattern, stored, output.fill))
            buffers.append(results[-1]._vals)  # type: ignore[attr-defined]
        frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
        return tuple(results)

    def _assembled(self, operands: Sequence[torch.Tensor], frame: Frame) -> torch.Tensor:
        """A result whose pattern the kernel computes, or is cached for operands of the same patterns."""
        assembled, patterns = self._found, patterns_of(operands)
        assert assembled is not None, "preparing sets it"
        known = assembled.known(frame.shape, patterns)
        sizes, buffers = self._read(operands, frame)
        sizes[assembled.entries_place] = -1 if known is None else known[2]
        slots = assembled.slots()
        frame.call(tuple(sizes), (*buffers, *assembled.buffers(known)), count(self.options), slots)
        return assembled.result(frame.shape, patterns, known, slots.tensors)


def has_interior(program: Program) -> bool:
    """Whether a program reads a tensor inside rows of zeros."""
    return any(program.declaration(name).interior is not None for name in program.inputs)


def allocator(output: Declaration) -> Callable[..., torch.Tensor]:
    """The function from a shape to memory of a dense result."""
    dtype = getattr(torch, output.dtype)
    if output.interior is None:
        return partial(POOL.empty, dtype=dtype)
    return partial(PADDED.empty, dtype=dtype, interior=output.interior)


def maker(output: Declaration, shape: Shape) -> Callable[[], torch.Tensor]:
    """The function that allocates memory of a dense result of a shape."""
    if output.interior is None:
        return POOL.maker(shape, getattr(torch, output.dtype))
    return partial(allocator(output), shape)
