"""Parallel compilation of several kernels.

In: kernels with the sizes of their expected operands. Out: the error of each kernel, `None` on success.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparsify.compiler.cpp.toolchain.side_by_side import side_by_side
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.options import current

if TYPE_CHECKING:
    from sparsify.compiler.kernel.kernel import Kernel


def prepare_all(wanted: Sequence[tuple["Kernel", Sizes]]) -> list[Exception | None]:
    """Compiles kernels for operands of the given sizes, all in parallel.

    Returns:
        the error of each kernel, `None` on success.
    """
    steps: dict[GeneratedStep, list[Sizes]] = {}
    for kernel, sizes in wanted:
        if sizes is not UNKNOWN:
            kernel.sizes = sizes.without_operands()
        for step in kernel.generated:
            steps.setdefault(step, []).append(kernel.sizes_as_read(sizes))
    tasks = [partial(_prepare, step, sizes) for step, sizes in steps.items()]
    # Interleaved dumps of several kernels would be unreadable.
    found = side_by_side(tasks, in_turn=bool(current().dump))
    outcomes = dict(zip(steps, found, strict=True))
    errors: list[Exception | None] = []
    for kernel, _ in wanted:
        own = [outcomes[step] for step in kernel.generated]
        kernel.cache = "none" if kernel.failure is not None else "miss" if True in own else "hit"
        errors.append(next((outcome for outcome in own if isinstance(outcome, Exception)), None))
    return errors


def build_all(wanted: Sequence[tuple["Kernel", Sizes]]) -> None:
    """Compiles kernels that are to be timed, as `prepare_all`.

    Raises:
        SparsifyError: one cannot be compiled.
    """
    for error, (kernel, _) in zip(prepare_all(wanted), wanted, strict=True):
        if (reason := error or kernel.failure) is not None:
            raise reason


def _prepare(step: GeneratedStep, wanted: Sequence[Sizes]) -> bool:
    """Compiles a statement for operands of all these sizes; true if a kernel had to be built."""
    built = [step.prepare(sizes) for sizes in wanted]
    return any(built)
