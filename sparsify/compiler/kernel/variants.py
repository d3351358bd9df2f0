"""Variants: the kernels of one statement, one for each schedule chosen by sizes.

In: `variants.best(sizes)`. Out: the `Variant` with the schedule chosen for these sizes, compiled if new.

Every kernel is correct for operands of all sizes. A statement has at most a few; beyond the limit the kernel for
unknown sizes serves new sizes.
"""

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Final

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.build import find_compiler
from sparsify.compiler.cpp.toolchain.cache import Generated, Library, library
from sparsify.compiler.cpp.toolchain.fingerprint import fingerprint
from sparsify.compiler.kernel.decision_cache import recall
from sparsify.compiler.loops.nodes import Buffer
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.directives import CLASSES, Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, SizeClass, Sizes
from sparsify.errors import CompilerError
from sparsify.options import Options
from sparsify.storage.level.known_levels import registered

if TYPE_CHECKING:
    from sparsify.compiler.pipeline import Stages

LIMIT: Final = 8
Signature = tuple[tuple[str, ...], tuple[Buffer, ...]]


class Variant:
    """A kernel of a statement.

    Args:
        make: function that compiles the statement through all stages.
        library: loaded kernel, whose notes list the sizes and buffers of `signature`.

    Attributes:
        call: function that runs the kernel.
    """

    def __init__(self, make: "Callable[[], Stages]", library: Library) -> None:
        self._make, self.library = make, library
        self.call = foreign_call.bind(library)
        buffers = tuple(Buffer(*fields) for fields in library.notes["buffers"])
        self.signature: Signature = (tuple(library.notes["sizes"]), buffers)

    @cached_property
    def stages(self) -> "Stages":
        """The stages from statement to C++; computed lazily for a kernel found on disk."""
        return self._make()


class Variants:
    """The kernels of a statement, by requested schedule.

    Args:
        step: statement.
        schedule: only schedule, or `None` for a choice by sizes.
        vector_bytes: vector width of the kernels.
        options: compiler, cache and checks.

    Attributes:
        built: number of compiled kernels, without those found on disk.
        answers: exact sizes and schedule of each requested size class.
    """

    def __init__(self, step: Step, schedule: Schedule | None, vector_bytes: int, options: Options) -> None:
        self.step, self.schedule, self.vector_bytes, self.options = step, schedule, vector_bytes, options
        self.built = 0
        self.answers: dict[SizeClass, tuple[Sizes, Schedule]] = {}
        self._known: dict[Schedule, Variant] = {}
        self._preferred: dict[SizeClass, Schedule] = {}

    def best(self, sizes: Sizes) -> Variant:
        """The kernel for operands of these sizes.

        Raises:
            ScheduleError, UnsupportedProgramError: the schedule does not fit, or none does.
            CompilerError: no kernel exists yet, and the compiler is missing or failed.
        """
        if not self._known:
            find_compiler(self.options)  # no search for a schedule of a kernel that cannot be built
        wanted = self.wanted(sizes)
        self.answers[sizes.rounded(self.step.program)] = sizes.without_operands(), wanted
        found = self._known.get(wanted)
        if found is not None:
            return found
        if len(self._known) >= LIMIT:
            return self._generic
        try:
            made = self._known[wanted] = self._find(wanted, sizes)
        except CompilerError:
            if not self._known:
                raise
            made = next(iter(self._known.values()))  # correct for all sizes, if slower
        return made

    def known(self) -> dict[Schedule, Library]:
        """The existing kernels by schedule."""
        return {schedule: variant.library for schedule, variant in self._known.items()}

    def stages(self, sizes: Sizes) -> "Stages":
        """The stages from statement to C++ for operands of these sizes; nothing is built."""
        return compiled_stages(self.step, self.schedule, self.vector_bytes, self.options, sizes)

    def prefer(self, schedule: Schedule, sizes: Sizes) -> None:
        """Fixes a benchmarked schedule for operands in the size class of `sizes`."""
        self._preferred[sizes.rounded(self.step.program)] = schedule

    @cached_property
    def _generic(self) -> Variant:
        return self._find(self.wanted(UNKNOWN), UNKNOWN)

    @cached_property
    def _parts(self) -> dict[str, str]:
        """All parts of a kernel's cache key besides its schedule and the origin of the schedule."""
        from sparsify.compiler.einsum.register import definitions

        return {
            "step": repr(self.step),
            "monoids": definitions(self.step.program),
            "vector bytes": str(self.vector_bytes),
            "compiler of sparsify": fingerprint(),
            "levels": registered(),
        }

    def wanted(self, sizes: Sizes) -> Schedule:
        """The schedule to try first."""
        from sparsify.compiler.pipeline import chosen

        if self.schedule is not None:
            return self.schedule
        if self._preferred and (measured := self._preferred.get(sizes.rounded(self.step.program))):
            return measured
        answer = partial(chosen, self.step, self.vector_bytes, sizes)
        return recall(f"schedule of {self._parts}", sizes, answer, self.options, classes=CLASSES)

    def _find(self, wanted: Schedule, sizes: Sizes) -> Variant:
        """The kernel of a schedule, from disk before its C++ is generated, else built."""
        given_schedule = wanted if wanted in self._preferred.values() else self.schedule
        given = (self.step, given_schedule, self.vector_bytes, self.options, sizes.without_operands())
        make = cache(partial(compiled_stages, *given))

        def generate() -> Generated:
            stages = make()
            buffers = [[b.name, b.dtype, b.output, b.grown] for b in stages.loops.buffers]
            return Generated(stages.cpp, {"sizes": list(stages.loops.sizes), "buffers": buffers})

        if self.options.dump:
            make()  # kernels found on disk would not run the stages to dump
        parts = {**self._parts, "is chosen": str(given_schedule is None), "schedule": str(wanted)}
        found = library(generate, parts, self.options)
        self.built += found.origin == "compiled"
        return Variant(make, found)


def compiled_stages(
    step: Step, schedule: Schedule | None, vector_bytes: int, options: Options, sizes: Sizes = UNKNOWN
) -> "Stages":
    """`pipeline.compile_stages`; kernels from disk do without its modules."""
    from sparsify.compiler.pipeline import compile_stages

    return compile_stages(step, schedule, vector_bytes, options, sizes)
