"""Kernels saved with a model: programs, schedules by sizes, and shared objects for CPU levels.

In: a built `Kernel`. Out: a document of plain data and the libraries that it names; later the same kernel, which is
never built: the kernel of the nearest sizes computes new sizes, since every kernel is correct for all sizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import log2
from pathlib import Path
from typing import Any, Final

from sparsify.compiler.arrays import sort_edges
from sparsify.compiler.cpp.call import foreign_call, trampoline
from sparsify.compiler.cpp.toolchain import cache as toolchain
from sparsify.compiler.cpp.toolchain import levels, target
from sparsify.compiler.cpp.toolchain.cache import Library
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.kernel.variants import Variant, Variants, compiled_stages
from sparsify.compiler.plan.step import STEP_CLASSES, Step
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import SizeClass, Sizes
from sparsify.errors import DataError
from sparsify.options import Options, current

SUFFIX: Final = ".so"
# The helper functions that calls of a model in evaluation mode may use.
CALLED: Final = (trampoline.SYMBOL, sort_edges.SORT, sort_edges.TURN)


@dataclass
class Collected:
    """The shared objects of kernels, for some CPU levels.

    Attributes:
        levels: names of the levels.
        files: paths of the contents by file name.
    """

    levels: tuple[str, ...]
    files: dict[str, Path] = field(default_factory=dict)

    def add(self, library: Library) -> str:
        """Adds a library and returns its file name."""
        name = f"{library.key}{SUFFIX}"
        self.files[name] = library.path
        return name

    def kernel(self, kernel: Kernel) -> dict[str, Any]:
        """The document of a kernel.

        Raises:
            DataError: a statement of it has no kernel.
            CompilerError: it cannot be built for a level.
        """
        steps = [self._step(step) if isinstance(step, GeneratedStep) else repr(step) for step in kernel.steps]
        return {"program": repr(kernel.program), "steps": steps}

    def _step(self, step: GeneratedStep) -> dict[str, Any]:
        """The document of a statement and its kernels."""
        if step.failure is not None:
            raise DataError(
                f"a region of this model has no kernel to save: {step.failure}",
                "make a C++ compiler available and apply the recipe again, or save without kernels=True",
            )
        built = step.variants.answers and step.variants.known()
        found = {name: self._kernels(step, name) for name in self.levels} if built else {}
        return {"step": repr(step.step), "levels": found}

    def _kernels(self, step: GeneratedStep, level: str) -> dict[str, Any]:
        """Schedules by size class, and files of kernels by schedule."""
        answers, made = answered(step, level)
        return {
            "sizes": [[[list(item) for item in rounded], str(found)] for rounded, found in answers],
            "kernels": {str(found): [self.add(lib), dict(lib.notes)] for found, lib in made.items()},
        }

    def support(self) -> dict[str, dict[str, list[str]]]:
        """Files of helper libraries by CPU level, each with the digest of its source and its function."""
        foreign_call.trampolines()
        found: dict[str, dict[str, list[str]]] = {}
        for (source, symbol), library in toolchain.texts().items():
            if symbol not in CALLED:
                continue
            for level in self.levels:
                made = library
                # The folder of a loaded library may have been deleted.
                if level != levels.NATIVE or not library.path.exists():
                    plain = levels.options_for(level, replace(current(), compiler_flags=()))
                    made = toolchain.library(source, {"level": level}, plain, symbol=symbol)
                digest = toolchain.text_digest(source, symbol)
                found.setdefault(level, {})[digest] = [self.add(made), symbol]
        return found


def answered(
    step: GeneratedStep, level: str
) -> tuple[list[tuple[SizeClass, Schedule]], dict[Schedule, Library]]:
    """The schedules of a statement for its encountered sizes, built for a level, and their libraries."""
    asked = step.variants.answers
    if level == levels.NATIVE:
        known = step.variants.known()
        spare = next(iter(known))
        chosen = [(rounded, found if found in known else spare) for rounded, (_, found) in asked.items()]
        return chosen, {found: known[found] for _, found in chosen}
    options = levels.options_for(level, step.options)
    variants = Variants(step.step, None, target.vector_bytes(options), options)
    for sizes, _ in asked.values():
        variants.best(sizes)
    return [(rounded, found) for rounded, (_, found) in variants.answers.items()], variants.known()


class StoredVariants(Variants):
    """The kernels of a statement that were built elsewhere.

    Args:
        step, options: arguments of `Variants`.
        vector_bytes: vector width of the kernels.
        answers: schedules by encountered size class.
        libraries: libraries by schedule.
    """

    def __init__(
        self,
        step: Step,
        vector_bytes: int,
        options: Options,
        answers: Sequence[tuple[SizeClass, Schedule]],
        libraries: Mapping[Schedule, Library],
    ) -> None:
        super().__init__(step, None, vector_bytes, options)
        self._answers, self._libraries = list(answers), libraries

    def best(self, sizes: Sizes) -> Variant:
        """The kernel for the nearest encountered sizes; nothing is built."""
        wanted = self.wanted(sizes)
        found = self._known.get(wanted)
        if found is None:
            given = (self.step, wanted, self.vector_bytes, self.options, sizes.without_operands())
            found = self._known[wanted] = Variant(
                cache(partial(compiled_stages, *given)), self._libraries[wanted]
            )
        return found

    def wanted(self, sizes: Sizes) -> Schedule:
        """The schedule for the nearest encountered sizes."""
        rounded = sizes.rounded(self.step.program)
        return min(self._answers, key=lambda answer: distance(answer[0], rounded))[1]


def distance(one: SizeClass, other: SizeClass) -> float:
    """The sum of factors of two between sizes.

    >>> distance((("i", 63), ("rows of A", None)), (("i", 255), ("rows of A", None)))
    2.0
    """
    known, found = dict(other), 0.0
    for name, size in one:
        beside = known.get(name)
        if size is not None and beside is not None:
            found += abs(log2((size + 1) / (beside + 1)))
    return found


@dataclass
class Stored:
    """Kernels in a folder, as far as the CPU and this version can use them.

    Attributes:
        level: CPU level, None if kernels are built locally or torch's operators compute.
        libraries: libraries by file name.
    """

    level: str | None = None
    libraries: dict[str, Library] = field(default_factory=dict)

    def kernel(self, document: Mapping[str, Any], options: Options) -> Kernel:
        """The kernel of a document.

        Raises:
            SparsifyError, KeyError, TypeError, ValueError: a document of another version.
        """
        program = serialize.read(document["program"])
        steps = [
            serialize.read(step, STEP_CLASSES) if isinstance(step, str) else self._step(step, options)
            for step in document["steps"]
        ]
        return Kernel(program, tuple(steps), None, options)

    def _step(self, document: Mapping[str, Any], options: Options) -> GeneratedStep:
        """A statement, with its kernels of the folder if any."""
        step: Step = serialize.read(document["step"], STEP_CLASSES)
        found = document["levels"].get(self.level)
        if found is None:
            return GeneratedStep(step, Variants(step, None, target.vector_bytes(options), options), options)
        answers = [
            (tuple((str(name), size) for name, size in rounded), Schedule.parse(text))
            for rounded, text in found["sizes"]
        ]
        libraries = {
            Schedule.parse(text): noted(self.libraries[name], notes)
            for text, (name, notes) in found["kernels"].items()
        }
        level = levels.LEVELS.get(self.level or "")
        width = target.vector_bytes(options) if level is None else level.vector_bytes
        return GeneratedStep(step, StoredVariants(step, width, options, answers, libraries), options)


def noted(library: Library, notes: Mapping[str, Any]) -> Library:
    """A library with the notes of its kernel."""
    return replace(library, notes=notes)


def opened(paths: Mapping[str, Path], document: Mapping[str, Any], level: str) -> Stored:
    """The kernels of a level in a folder, loaded together with their helper libraries.

    Args:
        paths: paths of the trusted shared objects, by their names in the document.
        document: document of a model.
        level: CPU level.

    Raises:
        CompilerError: one cannot be loaded.
        DataError: the document names another file.
        KeyError, TypeError, ValueError: a document of another version.
    """
    found = Stored(level)
    for kernel in document["kernels"]:
        for step in kernel["steps"]:
            known = {} if isinstance(step, str) else step["levels"].get(level, {"kernels": {}})["kernels"]
            for name, _ in known.values():
                if name not in found.libraries:
                    found.libraries[name] = toolchain.opened(file_of(paths, name))
    for digest, (name, symbol) in document["support"].get(level, {}).items():
        toolchain.supply(digest, toolchain.opened(file_of(paths, name), symbol))
    return found


def file_of(paths: Mapping[str, Path], name: str) -> Path:
    """The path of a shared object.

    Raises:
        DataError: it is none of the trusted ones.
    """
    if name not in paths:
        raise DataError(
            f"the graphs of a saved model name the kernel {name}, which is no file of its manifest",
            "save the model again",
        )
    return paths[name]


def usable(saved: Sequence[str], sets: Sequence[str], wanted: Iterable[str]) -> tuple[str | None, str]:
    """The first of the wanted levels that this CPU runs, and the reasons against the levels before it."""
    reasons = []
    for level in wanted:
        if level in saved:
            if not (lacks := levels.lacking(level, list(sets))):
                return level, ""
            reasons.append(f"{level} needs {', '.join(lacks[:4])}")
    return None, "; ".join(reasons)
