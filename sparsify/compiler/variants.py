"""The kernels of one statement: the choice of a schedule depends on sizes, and each schedule is a kernel.

In: `variants.best(sizes)`. Out: the `Variant` whose schedule is chosen for these sizes, compiled when it is new.

Every kernel is right for operands of all sizes. A statement has at most a few; after that the one for unknown
sizes serves what is new.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sparsify.compiler import native
from sparsify.compiler.cpp.cache import Library, library
from sparsify.compiler.pipeline import Stages, chosen, compile_stages
from sparsify.compiler.plan import Step
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.options import Options

LIMIT: Final = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel of a statement: how it became C++, the loaded library and the function that calls it."""

    stages: Stages
    library: Library
    call: native.Call


class Variants:
    """The kernels of a statement, by the schedule that was wanted for them.

    Args:
        step: the statement.
        schedule: the only one, or `None` for one that is chosen by sizes.
        vector_bytes: of the vectors that the kernels use.
        options: compiler, cache and checks.

    Attributes:
        built: how many kernels were compiled, and not found.
    """

    def __init__(self, step: Step, schedule: Schedule | None, vector_bytes: int, options: Options) -> None:
        self.step, self.schedule, self.vector_bytes, self.options = step, schedule, vector_bytes, options
        self.built = 0
        self._known: dict[Schedule, Variant] = {}

    def best(self, sizes: Sizes) -> Variant:
        """The kernel for operands of these sizes.

        Raises:
            ScheduleError, UnsupportedProgramError: the schedule does not fit, or none does.
            CompilerError: there is no compiler, or it failed.
        """
        wanted = self.schedule if self.schedule is not None else chosen(self.step, self.vector_bytes, sizes)
        found = self._known.get(wanted)
        if found is not None:
            return found
        if len(self._known) >= LIMIT:
            return self._generic
        made = self._known[wanted] = self._compile(sizes)
        return made

    @cached_property
    def _generic(self) -> Variant:
        return self._compile(UNKNOWN)

    def _compile(self, sizes: Sizes) -> Variant:
        stages = compile_stages(self.step, self.schedule, self.vector_bytes, self.options, sizes)
        found = library(stages.cpp, {"schedule": str(stages.schedule)}, self.options)
        self.built += found.origin == "compiled"
        return Variant(stages, found, native.bind(found))
