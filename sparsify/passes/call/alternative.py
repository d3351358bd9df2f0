"""Alternatives to a region's kernel, for calls like the one that was timed.

In: `Alternative("torch's CSR", run, 380.0)`, the arguments of the example. Out: a `Preferred`;
`preferred.takes(arguments)` says of a call whether its tensors have the dtypes and about the sizes of the example's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sparsify.compiler.schedule.size_class import octave
from sparsify.passes.call.first_backward import Result
from sparsify.storage.own_memory import PLAIN

# Shapes of calls that one answer is remembered for.
MOST: Final = 64
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else that computes a region.

    Attributes:
        name: in words.
        run: the region's result, of its call and the arguments of that.
        us: what a call is expected to take.
    """

    name: str
    run: Callable[[Any, Sequence[Any]], Result]
    us: float


class Preferred:
    """An alternative that is faster than the kernel, and for which calls: those of about the same sizes.

    Args:
        alternative: what was faster.
        example: the arguments that it was timed with.
    """

    def __init__(self, alternative: Alternative, example: Sequence[Any]) -> None:
        self.alternative = alternative
        self._like = rounded(described(example))
        self._known: dict[Key, bool] = {}

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether a call with these arguments is like the example's; none are where tensors are not plain."""
        key = described(arguments)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST:
                self._known.clear()
            known = self._known[key] = None not in key and rounded(key) == self._like
        return known


def described(arguments: Sequence[Any]) -> Key:
    """Sizes as they are, dtypes and shapes of tensors, `None` for anything else."""
    return tuple(
        [
            (arg.dtype, arg.shape) if type(arg) in PLAIN else arg if type(arg) is int else None
            for arg in arguments
        ]
    )


def rounded(key: Key) -> Key:
    """The same with the largest number of its class in place of each.

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
