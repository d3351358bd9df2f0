"""Least time of a call, and whether several runs agree on it.

In: times of a call in microseconds, interleaved with other calls. Out: `Least.us`, the minimum, and `Least.is_agreed`:
a few runs were as fast, so that other load on the machine had no influence.

Other load makes calls longer, never shorter: the minimum is the true time of the call once several runs repeat it.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Least:
    """The shortest times so far.

    Attributes:
        wanted: number of runs that have to agree.
        apart: largest relative difference to the least time.

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
        """Records the time of a run."""
        self.times = sorted([*self.times, us])[: self.wanted]

    @property
    def us(self) -> float:
        """The least time; infinite before the first run."""
        return self.times[0] if self.times else float("inf")

    @property
    def is_agreed(self) -> bool:
        """Whether `wanted` runs took no longer than the least time, up to the relative difference `apart`."""
        return len(self.times) == self.wanted and self.times[-1] <= (1 + self.apart) * self.times[0]
