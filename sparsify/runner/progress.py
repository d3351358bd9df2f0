"""Progress of a run, on standard error.

In: `Progress("bert", "1 x 4096 tokens", 8000.0)`, with the milliseconds of a dense pass. Out: lines like
`bert: turn 2, dense 7.6 s, sparse 2 s`; none for short runs or under the option `quiet`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparsify.options import current
from sparsify.runner.measure import FEWEST, LONG_MS, Timing

# Dense passes beside the turns: the first pass, the pass under the pattern or for the memory, and about as much time
# for the sparse model.
OTHERS: Final = 4


# Milliseconds of making a model sparse from which a run shows progress, also with short passes.
LONG_APPLY_MS: Final = 10_000.0


@dataclass(slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        model: name of the model.
        inputs: inputs of a pass, in words.
        dense_ms: time of a dense pass.
        apply_ms: time of making the model sparse, 0 until then.
    """

    model: str
    inputs: str
    dense_ms: float
    apply_ms: float = 0.0

    @property
    def is_told(self) -> bool:
        """Whether the run is slow enough for progress lines."""
        is_slow = self.dense_ms > LONG_MS or self.apply_ms > LONG_APPLY_MS
        return is_slow and not current().quiet

    def begun(self) -> None:
        """Prints the time of a dense pass, and the expected time of the run."""
        expected = seconds((FEWEST + OTHERS) * self.dense_ms)
        self.say(
            f"a dense pass of {self.inputs} takes {seconds(self.dense_ms)}, the run about {expected} and the time of "
            "making it sparse, which begins"
        )

    def applied(self, apply_ms: float) -> None:
        """Says how long making the model sparse took."""
        self.apply_ms = apply_ms
        self.say(f"it is sparse after {seconds(apply_ms)}; passes are compared")

    def show(self, result: object) -> None:
        """Prints a result before other libraries are timed."""
        self.say(f"a first table, then the dense model by other libraries\n\n{result}\n")

    def turn(self, timings: Sequence[Timing]) -> None:
        """Prints the times of the last turn of slow passes."""
        if self.dense_ms <= LONG_MS:
            return
        dense, sparse = (seconds(timing.runs_ms[-1]) for timing in timings[:2])
        self.say(f"turn {len(timings[0].runs_ms)}, dense {dense}, sparse {sparse}")

    def say(self, text: str) -> None:
        """Prints one line of progress to standard error."""
        if self.is_told:
            print(f"{self.model}: {text}", file=sys.stderr, flush=True)


def seconds(milliseconds: float) -> str:
    """A time in words.

    >>> seconds(1234.0), seconds(89_000.0), seconds(95_000.0)
    ('1.2 s', '89 s', '1.6 min')
    """
    if milliseconds >= 90_000:
        return f"{milliseconds / 60_000:.1f} min"
    return f"{milliseconds / 1000:.2g} s"
