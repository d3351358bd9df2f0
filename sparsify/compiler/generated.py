"""A generated kernel: how its sizes and buffers come from tensors.

In: `step({"A": A, "x": x})`. Out: `y`, written by one foreign call.

What depends on shapes only is found once per combination of shapes, what depends on a pattern once per pattern;
a call that has been made before looks both up and fills in addresses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from sparsify.compiler import native
from sparsify.compiler.compact import compact, compact_sizes, compactable, large
from sparsify.compiler.cpp.cache import Library
from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.known import KNOWN
from sparsify.compiler.loops.lower.assemble import is_assembled
from sparsify.compiler.pipeline import Stages
from sparsify.compiler.plan import Step
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.compiler.variants import Signature, Variant, Variants
from sparsify.errors import DtypeError, FormatError, ShapeError
from sparsify.options import Options
from sparsify.runtime.buffers import POOL, Slots
from sparsify.runtime.threads import count
from sparsify.storage.convert import Conversion, conversion, permuted
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

Shape = tuple[int, ...]
REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class Frame:
    """What a combination of operands' shapes fixes.

    Attributes:
        sizes: of the kernel, numbers of stored entries still 0.
        shape: of the result.
        empty: makes the memory of a dense result.
        call: runs the kernel that was chosen.
    """

    sizes: tuple[int, ...]
    shape: Shape
    empty: Callable[[], torch.Tensor]
    call: native.Call


class DenseInput:
    """An operand whose memory the kernel reads as it is."""

    def __init__(self, declared: Declaration, is_twin: bool = False) -> None:
        self.name, self.dtype, self.is_twin = declared.name, getattr(torch, declared.dtype), is_twin
        # Where it differs from how torch lays out a tensor.
        plain = declared.format.is_short and declared.format.ordering == tuple(range(declared.format.rank))
        self.format = None if plain else declared.format

    def read(self, operand: torch.Tensor, sizes: list[int], buffers: list[torch.Tensor | None]) -> None:
        """Appends the operand to the buffers.

        Raises:
            DtypeError, FormatError: it is not what the kernel was compiled for.
        """
        if self.format is not None or isinstance(operand, SparseTensor):
            operand = self._laid_out(operand)
        if operand.dtype is not self.dtype:
            raise DtypeError(f"{self.name} has dtype {operand.dtype}, the kernel takes {self.dtype}")
        if operand.is_conj() or operand.is_neg():
            operand = operand.resolve_conj().resolve_neg()
        if not operand.is_cpu:
            raise FormatError(f"{self.name} is on {operand.device}, kernels run on the CPU", "value.cpu()")
        buffers.append(operand if operand.is_contiguous() else operand.detach().contiguous())

    def _laid_out(self, operand: torch.Tensor) -> torch.Tensor:
        """The values of the operand in the order of the kernel's levels.

        Raises:
            FormatError: it is stored in another way.
        """
        if not isinstance(operand, SparseTensor):
            if self.format is None or not self.format.is_short:
                raise FormatError(
                    f"{self.name} is dense and was {self.format} when compiled", "sparsify.tensor"
                )
            return operand.permute(self.format.ordering)
        if self.is_twin:
            operand = operand.to(format=self.format or Format("dense", rank=operand._pattern.rank))
        own = operand._pattern.format
        if own != (self.format or Format("dense", rank=own.rank)):
            raise FormatError(f"{self.name} is stored {own} and was dense when compiled", "value.to_dense()")
        return operand._vals


class SparseInput:
    """An operand of which the kernel reads the arrays of its levels and the values.

    Attributes:
        place: where among the kernel's sizes the number of stored entries is; -1 when it is not asked for.
        widths: level and place among the sizes of each number of positions that all parents have.
    """

    def __init__(self, declared: Declaration, is_twin: bool, sizes: tuple[str, ...]) -> None:
        self.name, self.dtype = declared.name, getattr(torch, declared.dtype)
        self.declared, self.is_twin = declared, is_twin
        self.place = sizes.index(f"{self.name}_nnz") if f"{self.name}_nnz" in sizes else -1
        names = [f"{self.name}{number}_width" for number in range(1, len(declared.format.levels) + 1)]
        self.widths = [(level, sizes.index(name)) for level, name in enumerate(names) if name in sizes]

    def read(self, operand: torch.Tensor, sizes: list[int], buffers: list[torch.Tensor | None]) -> None:
        """Appends the arrays and the values to the buffers, and sets the number of entries.

        Raises:
            DtypeError, FormatError: it is not what the kernel was compiled for.
        """
        if not isinstance(operand, SparseTensor):
            raise FormatError(
                f"{self.name} is dense and was {self.declared.format} when compiled", "sparsify.tensor"
            )
        pattern, values = operand._pattern.validated(), operand._vals
        if values.dtype is not self.dtype:
            raise DtypeError(f"{self.name} has dtype {values.dtype}, the kernel takes {self.dtype}")
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        if not values.is_cpu:
            raise FormatError(f"{self.name} is on {values.device}, kernels run on the CPU", "value.cpu()")
        arrays, widths, converted = pattern.recall(self) or pattern.cached(self, lambda: self.arrays(pattern))
        if converted is not None:
            values = permuted(values, converted, operand._fill)
        if self.place >= 0:
            sizes[self.place] = values.shape[0]
        for place, width in widths:
            sizes[place] = width
        buffers += arrays
        buffers.append(values if values.is_contiguous() else values.contiguous())

    def arrays(
        self, pattern: Pattern
    ) -> tuple[tuple[torch.Tensor, ...], tuple[tuple[int, int], ...], Conversion | None]:
        """The arrays of a pattern as the kernel was compiled for them, its widths, and how values get into order."""
        found: Conversion | None = None
        wanted = self.declared.format
        if pattern.format != wanted:
            if not self.is_twin and not _same_levels(pattern.format, wanted):
                raise FormatError(
                    f"{self.name} is stored {pattern.format}, the kernel takes {wanted}",
                    f"value.to(format={str(wanted)!r})",
                )
            found = conversion(pattern, wanted)
            pattern = found.pattern
        indices = []
        for number, dtypes in enumerate(self.declared.index_dtypes):
            for array, dtype in zip((pattern.pos[number], pattern.crd[number]), dtypes, strict=True):
                if array is not None:
                    indices.append(array.to(getattr(torch, dtype)))
        widths = tuple(
            (place, pattern.level_arrays(level, pattern.positions(level)).width)
            for level, place in self.widths
        )
        return tuple(indices), widths, found


class GeneratedStep:
    """A statement as generated kernels, of which one is chosen when shapes are met for the first time.

    Args:
        step: the statement, and operands that it reads in another mode ordering.
        variants: its kernels.
        options: threads and the threshold below which a kernel is serial.

    Attributes:
        current: the kernel that was asked for last.
    """

    def __init__(self, step: Step, variants: Variants, options: Options) -> None:
        self.step, self.variants, self.options = step, variants, options
        self.program, self.result = step.program, step.result
        self.twins = {twin.name: twin.source for twin in step.twins}
        self.operands = tuple(self.twins.get(name, name) for name in self.program.inputs)
        self.results = self.program.outputs
        self.output = self.program.declaration(self.result)
        self._declared = tuple(self.program.declaration(name) for name in self.program.inputs)
        self._dtype = getattr(torch, self.output.dtype)
        self._is_assembled = is_assembled(self.output)
        self._compactable = compactable(self.program) if self._is_assembled else frozenset()
        self._is_plain = self.output.format.ordering == tuple(range(len(self.output.extents)))
        self._outputs = tuple(self.program.declaration(name) for name in self.results)
        root = self.output.pattern_of
        self._root = None if root is None else self.program.inputs.index(root)
        self._frames: dict[tuple[Shape, ...], Frame] = {}
        self._current: Variant | None = None
        self._inputs: tuple[DenseInput | SparseInput, ...] = ()
        self._known: tuple[object, ...] = ()
        self._signature: Signature = ((), ())

    def prepare(self, sizes: Sizes) -> bool:
        """Compiles the kernel for operands of these sizes; whether it had to be built.

        Raises:
            ScheduleError, UnsupportedProgramError: the schedule does not fit, or none does.
            CompilerError: there is no compiler, or it failed.
        """
        if sizes is UNKNOWN and self._current is not None:
            return False
        sizes = compact_sizes(self._compactable, sizes.also(self.twins))
        known = sizes.key(self.program)
        if known == self._known:
            return False
        before = self.variants.built
        found = self.variants.best(sizes)
        signature = found.signature
        if self._current is None:
            self._signature = signature
            self._inputs = tuple(
                DenseInput(d, d.name in self.twins)
                if d.format.is_dense
                else SparseInput(d, d.name in self.twins, signature[0])
                for d in self._declared
            )
        assert signature == self._signature, "all kernels of a statement take the same arguments"
        self._current, self._known = found, known
        return self.variants.built > before

    @property
    def current(self) -> Variant:
        """The kernel that was asked for last."""
        if self._current is None:
            self.prepare(UNKNOWN)
        assert self._current is not None, "preparing sets it"
        return self._current

    @property
    def stages(self) -> Stages:
        """How the statement became C++."""
        return self.current.stages

    @property
    def library(self) -> Library:
        """The kernel on disk."""
        return self.current.library

    def __call__(self, values: Mapping[str, torch.Tensor]) -> Any:
        """The result for operands, and temporaries, by name; several results in a tuple."""
        return self.compute([values[name] for name in self.operands])

    def compute(self, operands: Sequence[torch.Tensor]) -> Any:
        """The result for operands in the order of `operands`; several results in a tuple.

        Raises:
            ShapeError, DtypeError, FormatError: an operand that does not fit the program.
        """
        if self._compactable and (found := large(self._compactable, self._declared, operands)):
            return self._compacted(operands, found)
        return self._as_they_are(operands)

    def _as_they_are(self, operands: Sequence[torch.Tensor]) -> Any:
        """The results for operands over the coordinates that they have."""
        shapes = tuple([operand.shape for operand in operands])
        frame = self._frames.get(shapes) or self._frame(shapes, operands)
        sizes = list(frame.sizes)
        buffers: list[torch.Tensor | None] = []
        for operand, declared in zip(operands, self._inputs):
            declared.read(operand, sizes, buffers)
        if len(self._outputs) > 1:
            return self._several(operands, sizes, buffers, frame)
        if self._is_assembled:
            return self._assembled(operands, sizes, buffers, frame)
        if self._root is None:
            result = frame.empty()
            buffers.append(result)
            frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
            return result if self._is_plain else result.permute(_modes(self.output.format))
        pattern = operands[self._root]._pattern  # type: ignore[attr-defined]
        if self._inputs[self._root].is_twin:
            pattern = conversion(pattern, self.output.format).pattern
        stored = pattern.cached((POOL, self._dtype), lambda: POOL.maker((pattern.nnz,), self._dtype))()
        buffers.append(stored)
        frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
        return wrap(pattern, stored, self.output.fill)

    def _compacted(self, operands: Sequence[torch.Tensor], extents: frozenset[str]) -> torch.Tensor:
        """The result by way of operands over the coordinates that occur."""
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
            _match(declared, operand.shape, sizes)
        shape = [sizes[name] for name in self.output.extents]
        return wrap(found.spread(self.output, result._pattern, shape), result._vals, self.output.fill)

    def _frame(self, shapes: tuple[Shape, ...], operands: Sequence[torch.Tensor]) -> Frame:
        """Checks shapes, learns the extents from them and finds the kernel for such operands."""
        extents: dict[str, int] = dict(self.program.extents)
        for declared, shape in zip(self._declared, shapes, strict=True):
            _match(declared, shape, extents)
        self.prepare(sizes_of(self.program, operands))
        known = {f"{name}_extent": extent for name, extent in extents.items()}
        known["serial_threshold"] = self.options.serial_threshold
        # What the patterns give is set when they are read.
        sizes = tuple(known.get(name, 0) for name in self._signature[0])
        shape = tuple(extents[name] for name in self.output.extents)
        stored = shape
        if self.output.format.is_dense:
            stored = tuple(shape[mode] for mode in self.output.format.ordering)
        frame = Frame(sizes, shape, POOL.maker(stored, self._dtype), self.current.call)
        if len(self._frames) >= REMEMBERED:
            self._frames.clear()
        self._frames[shapes] = frame
        return frame

    def _several(
        self,
        operands: Sequence[torch.Tensor],
        sizes: list[int],
        buffers: list[torch.Tensor | None],
        frame: Frame,
    ) -> tuple[torch.Tensor, ...]:
        """All results of a kernel with more than one."""
        extents = {
            name: size
            for declared, operand in zip(self._declared, operands, strict=True)
            for name, size in zip(declared.extents, operand.shape, strict=True)
        } | dict(self.program.extents)
        results: list[torch.Tensor] = []
        for output in self._outputs:
            dtype = getattr(torch, output.dtype)
            if output.pattern_of is None:
                stored = [extents[output.extents[mode]] for mode in output.format.ordering]
                buffers.append(torch.empty(stored, dtype=dtype))
                results.append(buffers[-1].permute(_modes(output.format)))  # type: ignore[union-attr]
                continue
            pattern = operands[self.program.inputs.index(output.pattern_of)]._pattern  # type: ignore[attr-defined]
            results.append(wrap(pattern, torch.empty(pattern.nnz, dtype=dtype), output.fill))
            buffers.append(results[-1]._vals)  # type: ignore[attr-defined]
        frame.call(tuple(sizes), tuple(buffers), count(self.options), None)
        return tuple(results)

    def _assembled(
        self,
        operands: Sequence[torch.Tensor],
        sizes: list[int],
        buffers: list[torch.Tensor | None],
        frame: Frame,
    ) -> torch.Tensor:
        """A result whose pattern the kernel finds, or which operands of the same patterns had before."""
        arguments = self._signature[1]
        patterns = [operand._pattern for operand in operands if isinstance(operand, SparseTensor)]
        known = KNOWN.find(self, patterns)
        sizes[self._signature[0].index(f"{self.result}_nnz")] = -1 if known is None else known.nnz
        given = [] if known is None else known.arrays()
        missing = [None] * (len(arguments) - len(buffers) - len(given))
        slots = Slots({slot: getattr(torch, argument.dtype) for slot, argument in enumerate(arguments)})
        frame.call(tuple(sizes), (*buffers, *given, *missing), count(self.options), slots)
        made = {arguments[slot].name: array for slot, array in slots.tensors.items()}
        values = made.pop(f"{self.result}_vals")
        if known is None or made:
            levels = range(1, len(self.output.format.levels) + 1)
            pos = [made.get(f"{self.result}{number}_pos") for number in levels]
            crd = [made.get(f"{self.result}{number}_crd") for number in levels]
            known = Pattern(self.output.format, frame.shape, pos, crd).trusted()
            KNOWN.remember(self, patterns, known, [known])
        return wrap(known, values, self.output.fill)


def _match(declared: Declaration, shape: Sequence[int], extents: dict[str, int]) -> None:
    """Checks an operand's shape, and learns the extents of its index variables."""
    if len(shape) != len(declared.extents):
        raise ShapeError(f"{declared.name} has {len(shape)} modes, the kernel takes {len(declared.extents)}")
    for mode, (name, size) in enumerate(zip(declared.extents, shape, strict=True)):
        if extents.setdefault(name, size) != size:
            raise ShapeError(
                f"{declared.name} has extent {size} in mode {mode}, and {name} is {extents[name]} elsewhere"
            )


def _modes(format_: Format) -> tuple[int, ...]:
    """Where each mode is among the levels of a dense format."""
    return tuple(format_.ordering.index(mode) for mode in range(format_.rank))


def _same_levels(first: Format, second: Format) -> bool:
    """Whether two formats differ at most in dtypes of their arrays."""
    return [(type(s.level), s.expression) for s in first.levels] == [
        (type(s.level), s.expression) for s in second.levels
    ]
