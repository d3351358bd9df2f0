"""The reference implementation in place of a missing kernel: one warning with the consequence and the remedy.

In: the `CompilerNotFoundError` of a step, or operands on another device. Out: a `RuntimeWarning`, once for each
reason in a process.
"""

import warnings
from collections.abc import Sequence
from typing import Final

from torch import Tensor

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.compiler.operands.arguments import check_operand, patterns_of
from sparsify.errors import CompilerNotFoundError, DeviceError, SparsifyError
from sparsify.options import Options
from sparsify.storage.tensor import SparseTensor, wrap

LOST: Final = "torch's operators compute in place of kernels: same results, much slower"

KERNELS: Final = "kernels run on the CPU"
REMEDY: Final = "put them on the CPU, with .cpu(), to be fast"

_announced: set[tuple[object, ...]] = set()


def text_of(error: SparsifyError, place: str = "") -> str:
    """The consequence of an error, its place, its cause, and the remedy."""
    lost = f"{place}: {LOST}" if place else LOST
    if isinstance(error, CompilerNotFoundError | DeviceError):
        return f"{lost}; {error}"
    return f"{lost}; a kernel cannot be built: {error}"


def announce(error: SparsifyError, options: Options, program: Program) -> None:
    """Warns once about each reason for missing kernels under these options."""
    if is_new(error, options):
        place = "; ".join(map(str, program.statements))
        warnings.warn(f"sparsify: {text_of(error, place)}", RuntimeWarning, stacklevel=2)


def is_new(error: SparsifyError, options: Options) -> bool:
    """Whether a reason is new; marks the reason as announced."""
    reason = (type(error), options.compiler, options.compiler_flags, options.compiler_timeout)
    if reason in _announced:
        return False
    _announced.add(reason)
    return True


def computed(
    program: Program, operands: Sequence[Tensor], failure: SparsifyError | None, options: Options
) -> Tensor | tuple[Tensor, ...]:
    """The results of a program whose kernel cannot be built; a single result is not in a tuple.

    Args:
        operands: operands of the missing kernel.
        failure: reason that the kernel cannot be built, announced by a warning.
        options: options of the build.

    Raises:
        DtypeError, FormatError, ShapeError: operands that do not fit the program.
    """
    from sparsify.compiler.reference import evaluate_program

    assert failure is not None, "a kernel computes otherwise"
    announce(failure, options, program)
    for name, operand in zip(program.inputs, operands, strict=True):
        check_operand(program.declaration(name), operand)
    results = evaluate_program(program, dict(zip(program.inputs, operands, strict=True)))
    if len(results) > 1:
        return results
    (result,) = results
    return _on_known_pattern(program, operands, result) if isinstance(result, SparseTensor) else result


def computed_elsewhere(
    program: Program, operands: Sequence[Tensor], options: Options
) -> Tensor | tuple[Tensor, ...]:
    """The results of a program for operands on another device, on that device; a single result is not in a tuple.

    Raises:
        DeviceError: operands of several devices; with `strict` any other device.
    """
    found = dict.fromkeys(str(operand.device) for operand in operands if operand.dim())
    names = ", ".join(program.inputs)
    if len(found) > 1:
        raise DeviceError(f"{names} are on {' and '.join(found)}", "put all of them on one device")
    failure = DeviceError(f"{names} are on {next(iter(found), operands[0].device)}, {KERNELS}", REMEDY)
    if options.strict:
        raise failure
    return computed(program, operands, failure, options)


def _on_known_pattern(program: Program, operands: Sequence[Tensor], result: SparseTensor) -> SparseTensor:
    """A result on the cached pattern object for operands of the same patterns."""
    patterns, pattern = patterns_of(operands), result._pattern
    known = KNOWN.find(program, patterns)
    if pattern in patterns or program.declaration(program.outputs[0]).drops:
        return result
    if known is not None and known.is_unchanged() and known.equals(pattern):
        return wrap(known, result._vals, result._fill)
    KNOWN.remember(program, patterns, pattern, [pattern])
    return result
