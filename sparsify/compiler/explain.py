"""Explanation of a program: einsum, formats, notation, schedule, loops and C++ of each step.

In: a `Kernel`, or a program before compilation. Out: `Section`s, printed as text or converted to plain data.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.cpp.toolchain.cache import Library
from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.einsum.text import printer as einsum
from sparsify.compiler.kernel import substitute
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.notation import printer
from sparsify.compiler.pipeline import Stages, compile_stages, directives_text
from sparsify.compiler.plan.alternatives import alternatives
from sparsify.compiler.plan.fuse.row_chain import Fusion
from sparsify.compiler.plan.partition import Prepared, partition
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.step import TorchStep
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.schedule.templates import heavy_rows
from sparsify.options import Options, current

SECTIONS: Final = ("einsum", "formats", "cost", "notation", "schedule", "loops", "cpp", "kernel")


@dataclass(frozen=True, slots=True)
class Section:
    """A titled text with inner sections; the title of a stage is its name."""

    title: str
    text: str = ""
    inner: tuple["Section", ...] = ()

    def __str__(self) -> str:
        head = "\n".join(part for part in (self.title, indent(self.text)) if part)
        return "\n\n".join([head, *(indent(str(section)) for section in self.inner)])

    def to_dict(self) -> dict[str, Any]:
        """The section as plain data."""
        data: dict[str, Any] = {"title": self.title}
        if self.text:
            data["text"] = self.text
        if self.inner:
            data["sections"] = [section.to_dict() for section in self.inner]
        return data


@dataclass(frozen=True, slots=True)
class Explained:
    """A step of a plan and, once built, a description of its kernel."""

    step: TorchStep | Stages
    kernel: str = ""


def explain_kernel(kernel: Kernel, sizes: Sizes | None = None, **facts: Any) -> tuple[Section, ...]:
    """The sections of a compiled program.

    Args:
        kernel: program and plan, made for the first operands.
        sizes: sizes of the operands whose kernels are explained; by default those of the last preparation.
        facts: arguments of `explain_plan`.
    """
    if sizes is not None:
        for generated in kernel.generated:
            generated.prepare(kernel.sizes_as_read(sizes))
    plan = [
        Explained(step.stages, built(step)) if isinstance(step, GeneratedStep) else Explained(step)
        for step in kernel.steps
    ]
    scheduled = kernel.schedule is not None
    compared: Sequence[str] = () if scheduled else _compared(kernel.program, kernel.sizes)
    compared = (*compared, *(heavy_rows.said(kernel.program, sizes or kernel.sizes) if not scheduled else ()))
    if kernel.keeping.again:
        compared = (*compared, str(kernel.keeping))
    return explain_plan(kernel.program, plan, compared=compared, **facts)


def _compared(program: Program, sizes: Sizes) -> list[str]:
    """Fusion groups with reasons, and the compared loop orders of unfused statements."""
    cut = partition(Prepared(program, sizes))
    whole = next((group.found for group in cut.groups if group.part.is_whole), None)
    if isinstance(whole, Fusion):
        return [str(whole), *whole.held()]
    return cut.said() if whole is not None else [*cut.said(), *alternatives(program, sizes)]


def built(step: GeneratedStep) -> str:
    """Origin and key of the kernel of a step; or the reason that no kernel exists."""
    if step.failure is None:
        step.prepare(UNKNOWN)
    return found(step.library) if step.failure is None else substitute.text_of(step.failure)


def found(library: Library) -> str:
    """Origin of a kernel, built or found, and its key."""
    if library.origin == "compiled":
        return f"miss, built in {library.compile_seconds * 1e3:.0f} ms, key {library.key[:12]}"
    return f"hit, found {'on disk' if library.origin == 'disk' else 'in memory'}, key {library.key[:12]}"


def explain_program(
    program: Program,
    schedule: Schedule | None = None,
    options: Options | None = None,
    sizes: Sizes = UNKNOWN,
    **facts: Any,
) -> tuple[Section, ...]:
    """The sections of a program for operands of the given sizes; nothing is built."""
    options = options or current()
    width = target.vector_bytes(options)
    plan = [
        Explained(
            step
            if isinstance(step, TorchStep)
            else compile_stages(
                step, schedule, width, options, sizes.also({twin.name: twin.source for twin in step.twins})
            )
        )
        for step in steps(
            program, sizes, scheduled=schedule is not None, order=None if schedule is None else schedule.order
        )
    ]
    compared = () if schedule is not None else (*_compared(program, sizes), *heavy_rows.said(program, sizes))
    return explain_plan(program, plan, compared=compared, **facts)


def explain_plan(
    program: Program,
    plan: Sequence[Explained],
    *,
    sources: Mapping[str, str] | None = None,
    cost: str = "",
    compared: Sequence[str] = (),
) -> tuple[Section, ...]:
    """The sections of a program and of the steps of its plan.

    Args:
        program: einsum program.
        plan: steps of the program.
        sources: origins of operands, by name.
        cost: expected cost.
        compared: compared loop orders and contraction paths.
    """
    sections = [
        Section("einsum", "\n".join(map(str, program.statements))),
        Section("formats", formats_text(program, sources or {})),
    ]
    if cost or compared:
        sections.append(Section("cost", "\n".join([*([cost] if cost else []), *compared])))
    for number, explained in enumerate(plan, 1):
        inner = () if isinstance(explained.step, TorchStep) else stage_sections(explained)
        if len(plan) == 1 and inner:
            return (*sections, *inner)
        what = str(explained.step) if not inner else f"{results(explained.step)} by a generated kernel"
        sections.append(Section(f"step {number} of {len(plan)}: {what}", inner=inner))
    return tuple(sections)


def results(step: TorchStep | Stages) -> str:
    """The names of the results of a step."""
    return step.result if not isinstance(step, Stages) else ", ".join(step.program.outputs)


def stage_sections(explained: Explained) -> tuple[Section, ...]:
    """The sections of a generated step, in the order of the compiler's stages."""
    stages = explained.step
    assert isinstance(stages, Stages), "products of torch have no stages"
    turned = [
        f"{twin.name} is {twin.source} stored {twin.format.letters}, once for each pattern: {twin.why}"
        for twin in stages.twins
    ]
    schedule = [one_line(stages.schedule), *([stages.why] if stages.why else []), ""]
    schedule += [directives_text(stages.schedule), ""]
    schedule += [printer.indented(stages.notation.body), *runners_up(stages)]
    sections = [
        Section("notation", "\n".join([*turned, printer.folded(stages.plain.body)])),
        Section("schedule", "\n".join(schedule)),
        Section("loops", abridged(str(replace(stages.loops, comment="")))),
        Section("cpp", stages.cpp.rstrip()),
    ]
    if explained.kernel:
        sections.append(Section("kernel", explained.kernel))
    return tuple(sections)


def runners_up(stages: Stages) -> list[str]:
    """The rejected schedules, with reasons."""
    lines = [f"  {one_line(schedule)}\n    refused: {why}" for schedule, why in stages.refused]
    lines += [f"  {one_line(schedule)}" for schedule in stages.behind]
    return ["", "runners-up", *lines] if lines else []


def one_line(schedule: Schedule) -> str:
    """A schedule in one line."""
    return str(schedule) or "the loops as they are"


def abridged(text: str, least: int = 5) -> str:
    """The text with runs of lines that differ only in numbers, such as unrolled loops, shortened."""
    lines: list[str] = []
    for _, run in groupby(text.splitlines(), lambda line: re.sub(r"\d+", "0", line)):
        alike = list(run)
        if len(alike) >= least:
            margin = alike[0][: len(alike[0]) - len(alike[0].lstrip())]
            alike[1:-1] = [f"{margin}... {len(alike) - 2} lines alike"]
        lines += alike
    return "\n".join(lines)


def formats_text(program: Program, sources: Mapping[str, str]) -> str:
    """Storage and source of each tensor, in columns, and the sizes."""
    rows = [declaration_cells(program, declared, sources) for declared in program.declarations]
    lines = [columns(rows)]
    fixed = [f"{name} = {size}" for name, size in program.extents]
    names = dict.fromkeys(name for declared in program.declarations for name in declared.extents)
    free = [name for name in names if name not in dict(program.extents)]
    if fixed or free:
        known = ", ".join(fixed)
        lines.append(
            "; ".join(part for part in (known, f"{', '.join(free)} at run time" if free else "") if part)
        )
    return "\n".join(lines)


def declaration_cells(
    program: Program, declared: Declaration, sources: Mapping[str, str]
) -> tuple[str, str, str, str, str]:
    """The columns of a tensor: name, dtype, levels, short form, role."""
    name, kind, levels = einsum.declaration_parts(declared)
    notes = []
    if declared.name in program.inputs:
        notes.append(sources.get(declared.name, "operand"))
    else:
        notes.append("result" if declared.name in program.outputs else "temporary")
    if declared.fill != 0:
        notes.append(f"fill {declared.fill:g}")
    if declared.pattern_of is not None:
        notes.append(f"pattern of {declared.pattern_of}")
    arrays = dict.fromkeys(dtype for pair in declared.index_dtypes for dtype in pair if dtype)
    if arrays:
        notes.append(f"{' and '.join(arrays)} coordinates")
    return name, kind, levels, declared.format.letters, "; ".join(notes)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def only(sections: Iterable[Section], names: Collection[str]) -> tuple[Section, ...]:
    """The sections with these names, and their enclosing sections."""
    kept = []
    for section in sections:
        inner = only(section.inner, names)
        if section.title in names or inner:
            kept.append(replace(section, inner=inner))
    return tuple(kept)


def printed(sections: Iterable[Section]) -> str:
    """The text of sections, with an empty line between them."""
    return "\n\n".join(map(str, sections))


def indent(text: str) -> str:
    """The text indented by two spaces."""
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
