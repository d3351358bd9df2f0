"""Everything that sparsify raises.

    SparsifyError
      InvalidTensorError          coordinates, positions or values that make no tensor
      FormatError                 a format that is not one, or does not fit the tensor
        DeviceError               tensors on another device than the CPU, or on several
      ParseError                  index notation that cannot be read; shows the place
      EinsumError                 an expression that has no meaning
        ShapeError                sizes that do not fit each other
        DtypeError                dtypes that cannot be combined
      SparsifierError             a sparsifier that is not one, or does not fit the tensor
      ScheduleError               a schedule that is not one, or would change the result
      DiscordantError             no loop order visits all sparse operands from outer to inner level
      UnsupportedProgramError     an expression that cannot be compiled yet
      UnsupportedOperatorError    an operator without a sparse implementation
        DenseSizeError            a dense copy or result out of proportion to the stored entries
        ConversionError           a SparseTensor where others read dense memory, such as numpy
      RecipeError                 a mistake in a recipe, with file and line
        RecipeNotFoundError       neither a file nor a built-in recipe
      CaptureError                a model that cannot be captured
      CompilerError
        CompilerNotFoundError     no C++ compiler
        BuildError                the C++ compiler refused or took too long
        CacheError                the kernel cache cannot be used
      KernelError                 a kernel ended with a status code
      VerificationError           a sparse model whose results differ from the dense one's
      DataError                   a data set that cannot be loaded
      ProcessError                processes that cannot work together, or one that ended
      PackageConflictError        another distribution provides the name sparsify

Most also derive from the built-in class that Python code catches: a mistake in an argument is a `ValueError`,
`ShapeError` also a `RuntimeError` as torch's, `DtypeError` a `TypeError`, operators and programs without an
implementation are `NotImplementedError`s, `RecipeNotFoundError` is a `FileNotFoundError`, `PackageConflictError` an
`ImportError`; failures to capture, verify, build and run are `RuntimeError`s.

In: an error. Out: a text that says what was found and what to do, and `exit_status(error)` for the command line.
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
    """The base of all errors; its text is what was found, then what to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class InvalidTensorError(SparsifyError, ValueError):
    """Coordinates, positions or values that make no tensor; names the first offending entry."""


class FormatError(SparsifyError, ValueError):
    """A format that is not one, or that does not fit the tensor."""


class DeviceError(FormatError):
    """Tensors on another device than the one on which kernels run, or on several devices."""


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
    """An expression that has no meaning."""


class ShapeError(EinsumError, RuntimeError):
    """Sizes that do not fit each other."""


class DtypeError(EinsumError, TypeError):
    """Dtypes that cannot be combined."""


class SparsifierError(SparsifyError, ValueError):
    """A sparsifier that is not one, or that does not fit the tensor."""


class ScheduleError(SparsifyError, ValueError):
    """A schedule that is not one, or that would change the result."""


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
    """A dense copy or result that takes far more memory than the stored entries."""


class ConversionError(UnsupportedOperatorError, TypeError):
    """A SparseTensor was given to what reads dense memory, such as numpy and scipy."""


class RecipeError(SparsifyError, ValueError):
    """A mistake in a recipe, with file, line and column (from 1; 0 when there is none)."""

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0) -> None:
        Exception.__init__(self, message, file, line, column)
        self.message, self.file, self.line, self.column = message, file, line, column

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.message}" if place else self.message


class RecipeNotFoundError(RecipeError, FileNotFoundError):
    """A name that is neither a file nor a built-in recipe."""

    def __new__(cls, *args: Any) -> "RecipeNotFoundError":
        # OSError would read its fields from the arguments; other bases cannot make an object of its layout.
        return OSError.__new__(cls)

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message, file, line, column)
        self.errno, self.strerror, self.filename = ENOENT, message, file or None


class CaptureError(SparsifyError, RuntimeError):
    """A model that cannot be captured as a graph."""


class CompilerError(SparsifyError, RuntimeError):
    """The way from generated C++ to a loaded kernel failed."""


class CompilerNotFoundError(CompilerError):
    """There is no C++ compiler."""


class BuildError(CompilerError):
    """The C++ compiler refused the generated code or took too long."""


class CacheError(CompilerError):
    """The kernel cache cannot be used."""


class KernelError(SparsifyError, RuntimeError):
    """A kernel ended with a status code that is not 0."""

    def __init__(self, status: int, message: str) -> None:
        Exception.__init__(self, status, message)
        self.status, self.message = status, message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class VerificationError(SparsifyError, RuntimeError):
    """A sparse model whose results differ from the dense one's."""


class DataError(SparsifyError, ValueError):
    """A data set that cannot be loaded."""


class ProcessError(SparsifyError, RuntimeError):
    """Processes that cannot meet or work together, or one of them that ended."""


class PackageConflictError(SparsifyError, ImportError):
    """Another distribution provides the name `sparsify`."""


Function = TypeVar("Function", bound=Callable[..., Any])
INNER_FRAMES: Final = 4


def public(function: Function) -> Function:
    """`function` whose errors of this package keep only the last frames, where they were raised.

    A mistake in the arguments of a public function is found deep inside; the frames in between say nothing about it.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SparsifyError as error:
            raise shortened(error) from error.__cause__

    return call  # type: ignore[return-value]


def shortened(error: SparsifyError) -> SparsifyError:
    """The error with the last `INNER_FRAMES` frames of its traceback."""
    innermost = error.__traceback__
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.tb_next
    return error.with_traceback(frames[-min(INNER_FRAMES, len(frames))] if frames else None)


def path_of(place: Any, what: str) -> Path:
    """A path given as text or path.

    Raises:
        SparsifyError: anything else, or text that no path has.
    """
    if isinstance(place, str | PathLike) and isinstance(fspath(place), str) and "\0" not in fspath(place):
        return Path(place)
    raise SparsifyError(f"{what} {place!r} of type {type(place).__name__}", "a path, as text or pathlib.Path")


def exit_status(error: SparsifyError) -> int:
    """3 for what the machine lacks, 2 for a request that names what is not there, 1 for any other failure.

    >>> exit_status(DataError("no folder Cora"))
    3
    """
    if isinstance(error, DataError | CompilerNotFoundError | CacheError | PackageConflictError):
        return ENVIRONMENT
    if isinstance(error.__cause__, ModuleNotFoundError):
        return ENVIRONMENT
    return USAGE if type(error) in (SparsifyError, RecipeNotFoundError) else NEGATIVE
