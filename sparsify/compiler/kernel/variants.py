"""The kernels of one statement: the choice of a schedule depends on sizes, and each schedule is a kernel.

In: `variants.best(sizes)`. Out: the `Variant` whose schedule is chosen for these sizes, compiled when it is new.

Every kernel is right for operands of all sizes. A statement has at most a few; after that the one for unknown
sizes serves what is new.
"""

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Final

from sparsify.compiler.cpp.toolchain.build import find_compiler
from sparsify.compiler.cpp.toolchain.cache import Generated, Library, library
from sparsify.compiler.cpp.toolchain.fingerprint import fingerprint
from sparsify.compiler.einsum.register import definitions
from sparsify.compiler.kernel import foreign_call
from sparsify.compiler.kernel.decision_cache import recall
from sparsify.compiler.loops.nodes import Buffer
from sparsify.compiler.pipeline import Stages, chosen, compile_stages
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.directives import CLASSES, Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, SizeClass, Sizes
from sparsify.errors import CompilerError
from sparsify.options import Options
from sparsify.storage.known_levels import registered

LIMIT: Final = 8
Signature = tuple[tuple[str, ...], tuple[Buffer, ...]]


class Variant:
    """A kernel of a statement.

    Args:
        make: takes the statement through the stages of the compiler.
        library: the loaded kernel, which was noted to take the sizes and buffers of `signature`.

    Attributes:
        call: runs the kernel.
    """

    def __init__(self, make: Callable[[], Stages], library: Library) -> None:
        self._make, self.library = make, library
        self.call = foreign_call.bind(library)
        buffers = tuple(Buffer(*fields) for fields in library.notes["buffers"])
        self.signature: Signature = (tuple(library.notes["sizes"]), buffers)

    @cached_property
    def stages(self) -> Stages:
        """How the statement became C++; found kernels go through the stages when this is asked for first."""
        return self._make()


class Variants:
    """The kernels of a statement, by the schedule that was wanted for them.

    Args:
        step: the statement.
        schedule: the only one, or `None` for one that is chosen by sizes.
        vector_bytes: of the vectors that the kernels use.
        options: compiler, cache and checks.

    Attributes:
        built: how many kernels were compiled, and not found.
        answers: by the class of sizes that were asked for the sizes, in numbers, and the schedule of their kernel.
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
            CompilerError: there is no kernel yet, and there is no compiler, or it failed.
        """
        if not self._known:
            find_compiler(self.options)  # a schedule is not searched for a kernel that cannot be built
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
            made = next(iter(self._known.values()))  # right for all sizes, if slower
        return made

    def known(self) -> dict[Schedule, Library]:
        """The kernels that there are by their schedules."""
        return {schedule: variant.library for schedule, variant in self._known.items()}

    def stages(self, sizes: Sizes) -> Stages:
        """How the statement becomes C++ for operands of these sizes; nothing is built."""
        return compile_stages(self.step, self.schedule, self.vector_bytes, self.options, sizes)

    def prefer(self, schedule: Schedule, sizes: Sizes) -> None:
        """Makes a schedule that was measured the one for operands of about these sizes."""
        self._preferred[sizes.rounded(self.step.program)] = schedule

    @cached_property
    def _generic(self) -> Variant:
        return self._find(self.wanted(UNKNOWN), UNKNOWN)

    @cached_property
    def _parts(self) -> dict[str, str]:
        """All that a kernel depends on besides its schedule and who chose that."""
        return {
            "step": repr(self.step),
            "monoids": definitions(self.step.program),
            "vector bytes": str(self.vector_bytes),
            "compiler of sparsify": fingerprint(),
            "levels": registered(),
        }

    def wanted(self, sizes: Sizes) -> Schedule:
        """The schedule that is tried first."""
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
        make = cache(partial(compile_stages, *given))

        def generate() -> Generated:
            stages = make()
            buffers = [[b.name, b.dtype, b.output, b.grown] for b in stages.loops.buffers]
            return Generated(stages.cpp, {"sizes": list(stages.loops.sizes), "buffers": buffers})

        if self.options.dump:
            make()  # what is found on disk passes no stages that could be dumped
        parts = {**self._parts, "is chosen": str(given_schedule is None), "schedule": str(wanted)}
        found = library(generate, parts, self.options)
        self.built += found.origin == "compiled"
        return Variant(make, found)
