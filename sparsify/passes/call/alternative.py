"""Alternatives to a region's kernel, for calls similar to the timed one, or by their rows.

In: `Alternative("torch's CSR", run, 380.0)`, the arguments of the example. Out: a `Preferred`;
`preferred.takes(arguments)`: whether the tensors of a call have the example's dtypes and similar sizes. Or a `ByRows`,
which takes calls by their number of rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sparsify.compiler.schedule.size_class import octave
from sparsify.passes.call.first_backward import Result
from sparsify.storage.own_memory import PLAIN

# Maximum number of memoized call shapes.
MOST: Final = 64
Key = tuple[Any, ...]
# Numbers from a begin to below an end.
Ranges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another implementation of a region.

    Attributes:
        name: name for reports.
        run: function of the region's call and its arguments that returns the result.
        us: expected time of a call.
    """

    name: str
    run: Callable[[Any, Sequence[Any]], Result]
    us: float


class Preferred:
    """An alternative that beat the kernel, valid for calls with sizes similar to the timed example.

    Args:
        alternative: the faster alternative.
        example: arguments of the timing.
    """

    def __init__(self, alternative: Alternative, example: Sequence[Any]) -> None:
        self.alternative = alternative
        self._like = rounded(described(example))
        self._known: dict[Key, bool] = {}

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether a call is similar to the example; False for tensors of subclasses."""
        key = described(arguments)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST:
                self._known.clear()
            known = self._known[key] = None not in key and rounded(key) == self._like
        return known


@dataclass(frozen=True, slots=True)
class ByRows:
    """An alternative that beats the kernel for some numbers of rows.

    Attributes:
        alternative: the faster alternative.
        argument: position of the argument with the rows.
        mode: mode of the argument that counts rows.
        ranges: ranges of rows in which the alternative runs.
    """

    alternative: Alternative
    argument: int
    mode: int
    ranges: Ranges

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether a call has as many rows; False for tensors of subclasses."""
        tensor = arguments[self.argument]
        if type(tensor) not in PLAIN:
            return False
        rows = tensor.shape[self.mode]
        return any(begin <= rows < end for begin, end in self.ranges)


def described(arguments: Sequence[Any]) -> Key:
    """Integers unchanged, dtypes and shapes of tensors, `None` for any other argument."""
    return tuple(
        [
            (arg.dtype, arg.shape) if type(arg) in PLAIN else arg if type(arg) is int else None
            for arg in arguments
        ]
    )


def rounded(key: Key) -> Key:
    """The key with each number rounded up to the largest of its class.

    >>> rounded((50, 3000, (torch.float32, torch.Size((5000, 7)))))
    (50, 4095, (torch.float32, (8191, 7)))
    """
    return tuple(
        [
            (part[0], rounded(tuple(part[1])))
            if isinstance(part, tuple)
            else (part if part is None else octave(part)[1])
            for part in key
        ]
    )
