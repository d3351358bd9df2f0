"""Kernels compiled side by side.

In: kernels with the sizes of the operands that they will meet. Out: what went wrong with each, `None` when it is ready.
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
    """Compiles what these kernels need for operands of these sizes, all side by side.

    Returns:
        per kernel what went wrong, `None` when it is ready.
    """
    steps: dict[GeneratedStep, list[Sizes]] = {}
    for kernel, sizes in wanted:
        if sizes is not UNKNOWN:
            kernel.sizes = sizes.without_operands()
        for step in kernel.generated:
            steps.setdefault(step, []).append(sizes.shared(kernel.program))
    tasks = [partial(_prepare, step, sizes) for step, sizes in steps.items()]
    # Dumps of several kernels at once could not be read.
    found = side_by_side(tasks, in_turn=bool(current().dump))
    outcomes = dict(zip(steps, found, strict=True))
    errors: list[Exception | None] = []
    for kernel, _ in wanted:
        own = [outcomes[step] for step in kernel.generated]
        kernel.cache = "none" if kernel.failure is not None else "miss" if True in own else "hit"
        errors.append(next((outcome for outcome in own if isinstance(outcome, Exception)), None))
    return errors


def build_all(wanted: Sequence[tuple["Kernel", Sizes]]) -> None:
    """Compiles what these kernels need, as `prepare_all`, for kernels that are to be timed.

    Raises:
        SparsifyError: one cannot be compiled.
    """
    for error, (kernel, _) in zip(prepare_all(wanted), wanted, strict=True):
        if (reason := error or kernel.failure) is not None:
            raise reason


def _prepare(step: GeneratedStep, wanted: Sequence[Sizes]) -> bool:
    """Compiles a statement for operands of all these sizes; whether something had to be built."""
    built = [step.prepare(sizes) for sizes in wanted]
    return any(built)
