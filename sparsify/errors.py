"""All exceptions raised by sparsify.

    SparsifyError
      InvalidTensorError          coordinates, positions or values that form no tensor
      FormatError                 an invalid format, or a format unsuitable for the tensor
        DeviceError               tensors on another device than the CPU, or on several
      ParseError                  unreadable index notation; shows the position
      EinsumError                 an expression without a meaning
        ShapeError                sizes that do not fit each other
        DtypeError                dtypes that cannot be combined
      SparsifierError             an invalid sparsifier, or a sparsifier unsuitable for the tensor
      ScheduleError               an invalid schedule, or a schedule that would change the result
      DiscordantError             no loop order visits all sparse operands from outer to inner level
      UnsupportedProgramError     an expression that cannot be compiled yet
      UnsupportedOperatorError    an operator without a sparse implementation
        DenseSizeError            a dense copy or result out of proportion to the stored entries
        ConversionError           a SparseTensor passed to a reader of dense memory, such as numpy
      RecipeError                 a mistake in a recipe, with file and line
        RecipeNotFoundError       neither a file nor a built-in recipe
      CaptureError                a model that cannot be captured
      CompilerError
        CompilerNotFoundError     no C++ compiler
        BuildError                the C++ compiler refused or took too long
        CacheError                the kernel cache cannot be used
      KernelError                 a kernel ended with a status code
      VerificationError           a sparse model with other results than the dense model
      DataError                   a data set that cannot be loaded
      ProcessError                processes that cannot work together, or the end of one process
      PackageConflictError        another distribution provides the name sparsify

Most classes also derive from the corresponding built-in class: a mistake in an argument is a `ValueError`,
`ShapeError` also a `RuntimeError` as torch's, `DtypeError` a `TypeError`, operators and programs without an
implementation are `NotImplementedError`s, `RecipeNotFoundError` is a `FileNotFoundError`, `PackageConflictError` an
`ImportError`; failures to capture, verify, build and run are `RuntimeError`s.

In: an error. Out: a text with the finding and a remedy, and `exit_status(error)` for the command line.
"""

from collections.abc import Callable
from errno import ENOENT
from functools import wraps
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

FINE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
ENVIRONMENT: Final = 3


class SparsifyError(Exception):
    """Base of all errors; the text is the finding, followed by a remedy."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class InvalidTensorError(SparsifyError, ValueError):
    """Coordinates, positions or values that form no tensor; the text names the first offending entry."""


class FormatError(SparsifyError, ValueError):
    """An invalid format, or a format unsuitable for the tensor."""


class DeviceError(FormatError):
    """Tensors on another device than the kernels' device, or on several devices."""


class ParseError(SparsifyError, ValueError):
    """Index notation that cannot be read.

    >>> print(ParseError("y = x[i", 5, "never closed"))
    never closed
      y = x[i
           ^
    """

    def __init__(self, text: str, position: int, message: str) -> None:
        Exception.__init__(self, text, position, message)
        self.text, self.position, self.message = text, position, message

    def __str__(self) -> str:
        start = self.text.rfind("\n", 0, self.position) + 1
        line = self.text[start:].split("\n", 1)[0]
        return f"{self.message}\n  {line}\n  {' ' * (self.position - start)}^"


class EinsumError(SparsifyError, ValueError):
    """An expression without a meaning."""


class ShapeError(EinsumError, RuntimeError):
    """Sizes that do not fit each other."""


class DtypeError(EinsumError, TypeError):
    """Dtypes that cannot be combined."""


class SparsifierError(SparsifyError, ValueError):
    """An invalid sparsifier, or a sparsifier unsuitable for the tensor."""


class ScheduleError(SparsifyError, ValueError):
    """An invalid schedule, or a schedule that would change the result."""


class DiscordantError(SparsifyError, ValueError):
    """No loop order visits every sparse operand from its outer level to its inner level."""

    def __init__(self, first: str, second: str) -> None:
        Exception.__init__(self, first, second)
        self.first, self.second = first, second

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} need opposite loop orders; store one of them with the other "
            f"mode ordering: tensor.to(format=...)"
        )


class UnsupportedProgramError(SparsifyError, NotImplementedError):
    """An expression that cannot be compiled yet."""


class UnsupportedOperatorError(SparsifyError, NotImplementedError):
    """An operator without a sparse implementation."""


class DenseSizeError(UnsupportedOperatorError):
    """A dense copy or result with far more memory than the stored entries."""


class ConversionError(UnsupportedOperatorError, TypeError):
    """A SparseTensor passed to a reader of dense memory, such as numpy and scipy."""


class RecipeError(SparsifyError, ValueError):
    """A mistake in a recipe, with file, line and column (from 1; 0 if unknown)."""

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0) -> None:
        Exception.__init__(self, message, file, line, column)
        self.message, self.file, self.line, self.column = message, file, line, column

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.message}" if place else self.message


class RecipeNotFoundError(RecipeError, FileNotFoundError):
    """A name that is neither a file nor a built-in recipe."""

    def __new__(cls, *args: Any) -> "RecipeNotFoundError":
        # OSError.__new__ would read its fields from the arguments; other bases cannot create its memory layout.
        return OSError.__new__(cls)

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message, file, line, column)
        self.errno, self.strerror, self.filename = ENOENT, message, file or None


class CaptureError(SparsifyError, RuntimeError):
    """A model that cannot be captured as a graph."""


class CompilerError(SparsifyError, RuntimeError):
    """A failure between generated C++ and the loaded kernel."""


class CompilerNotFoundError(CompilerError):
    """No C++ compiler is installed."""


class BuildError(CompilerError):
    """The C++ compiler refused the generated code or took too long."""


class CacheError(CompilerError):
    """The kernel cache cannot be used."""


class KernelError(SparsifyError, RuntimeError):
    """A kernel ended with a nonzero status code."""

    def __init__(self, status: int, message: str) -> None:
        Exception.__init__(self, status, message)
        self.status, self.message = status, message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class VerificationError(SparsifyError, RuntimeError):
    """A sparse model with other results than the dense model."""


class DataError(SparsifyError, ValueError):
    """A data set that cannot be loaded."""


class ProcessError(SparsifyError, RuntimeError):
    """Processes that cannot meet or work together, or the end of one process."""


class PackageConflictError(SparsifyError, ImportError):
    """Another distribution provides the name `sparsify`."""


Function = TypeVar("Function", bound=Callable[..., Any])
INNER_FRAMES: Final = 4


def public(function: Function) -> Function:
    """Wrapper of `function`; errors of this package keep only the innermost frames of their tracebacks.

    A mistake in the arguments of a public function is detected deep inside; intermediate frames say nothing about it.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SparsifyError as error:
            raise shortened(error) from error.__cause__

    return call  # type: ignore[return-value]


def shortened(error: SparsifyError) -> SparsifyError:
    """Error with the last `INNER_FRAMES` frames of its traceback."""
    innermost = error.__traceback__
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.tb_next
    return error.with_traceback(frames[-min(INNER_FRAMES, len(frames))] if frames else None)


def path_of(place: Any, what: str) -> Path:
    """Path of a text or path object.

    Raises:
        SparsifyError: anything else, or text that is no path.
    """
    if isinstance(place, str | PathLike) and isinstance(fspath(place), str) and "\0" not in fspath(place):
        return Path(place)
    raise SparsifyError(f"{what} {place!r} of type {type(place).__name__}", "a path, as text or pathlib.Path")


def exit_status(error: SparsifyError) -> int:
    """Exit status: 3 for a defect of the machine, 2 for a request with an unknown name, 1 for any other failure.

    >>> exit_status(DataError("no folder Cora"))
    3
    """
    if isinstance(error, DataError | CompilerNotFoundError | CacheError | PackageConflictError):
        return ENVIRONMENT
    if isinstance(error.__cause__, ModuleNotFoundError):
        return ENVIRONMENT
    return USAGE if type(error) in (SparsifyError, RecipeNotFoundError) else NEGATIVE
