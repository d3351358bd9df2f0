"""The least time of a call, and whether its runs agree on it.

In: times of a call in microseconds, in turn with other calls. Out: `Least.us`, the least, and `Least.is_agreed`: a few
runs were as fast, so that what else the machine does had no part in it.

What else runs makes calls longer, never shorter: the least time is the call's own once others repeat it.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Least:
    """The shortest times so far.

    Attributes:
        wanted: how many runs have to agree.
        apart: by what share of the least time they may differ.

    >>> found = Least(wanted=2, apart=0.1)
    >>> for us in (14.0, 10.0, 30.0, 10.5):
    ...     found.add(us)
    >>> found.us, found.is_agreed
    (10.0, True)
    """

    wanted: int
    apart: float
    times: list[float] = field(default_factory=list)

    def add(self, us: float) -> None:
        """One more run."""
        self.times = sorted([*self.times, us])[: self.wanted]

    @property
    def us(self) -> float:
        """The least time; endless before the first run."""
        return self.times[0] if self.times else float("inf")

    @property
    def is_agreed(self) -> bool:
        """Whether as many runs as wanted took no longer, but for the share in which they may differ."""
        return len(self.times) == self.wanted and self.times[-1] <= (1 + self.apart) * self.times[0]
