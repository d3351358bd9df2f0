"""Schedules: the target share of zeros at each step. The module does not import torch.

In: `Schedule("cubic", to=0.9, end=1000)`. Out: `schedule.target(500)`, 0.7875; updates at 0, 100, ..., 1000.

Source: Zhu and Gupta, To prune, or not to prune, 2017, for the cubic schedule; Evci et al., Rigging the Lottery, 2020,
for the cosine decay of the share of exchanged entries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Final

PROGRESS: Final[dict[str, Callable[[float], float]]] = {
    "oneshot": lambda t: 1.0,
    "constant": lambda t: 0.0,
    "linear": lambda t: t,
    "cubic": lambda t: 1 - (1 - t) ** 3,
    "cosine": lambda t: (1 - cos(pi * t)) / 2,
}
"""By kind the share of the way that is done after the share `t` of the steps."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of zeros over steps.

    Attributes:
        kind: a key of `PROGRESS`.
        to: the final share of zeros; for `constant`, the share from the start.
        start_at: the share of zeros at the start.
        start, end: the first and the last step with an update.
        every: steps between updates; `end` is always an update.
    """

    kind: str
    to: float
    start_at: float = 0.0
    start: int = 0
    end: int = 0
    every: int = 1

    def progress(self, step: int) -> float:
        """Progress from the first target (0) to the last one (1)."""
        if step < self.start:
            return 0.0
        length = self.end - self.start
        return PROGRESS[self.kind](min(1.0, (step - self.start) / length) if length > 0 else 1.0)

    def target(self, step: int) -> float:
        """The target share of zeros at a step.

        >>> Schedule("linear", to=0.8, end=10).target(5)
        0.4
        """
        if self.kind == "constant":
            return self.to
        return self.start_at + (self.to - self.start_at) * self.progress(step)

    def exchanged(self, fraction: float, step: int) -> float:
        """The share of kept entries exchanged by regrowth at a step: decays from `fraction` to 0.

        >>> Schedule("cosine", to=0.9, end=10).exchanged(0.3, 10)
        0.0
        """
        return fraction * (1 - self.progress(step))

    def is_update(self, step: int) -> bool:
        """Whether masks are chosen anew at a step."""
        if not self.start <= step <= self.end:
            return False
        return step == self.end or (step - self.start) % self.every == 0

    def current_target(self, step: int) -> float:
        """The share of zeros at a step: the target of the last update until then."""
        if step < self.start or self.end == 0:
            return self.target(0)
        last = self.start + (step - self.start) // self.every * self.every
        return self.target(self.end if step >= self.end else last)


@dataclass(frozen=True, slots=True)
class Staged:
    """Consecutive schedules, each active from its `start`; all steps count from the beginning of the first schedule.

    >>> Staged((Schedule("oneshot", to=0.5), Schedule("linear", to=0.8, start_at=0.5, start=10, end=20))).target(15)
    0.65
    """

    parts: tuple[Schedule, ...]

    @property
    def kind(self) -> str:
        """The kinds of all parts."""
        return ", then ".join(part.kind for part in self.parts)

    @property
    def end(self) -> int:
        """The last step with an update."""
        return self.parts[-1].end

    def part(self, step: int) -> Schedule:
        """The schedule at a step."""
        started = [part for part in self.parts if part.start <= step]
        return started[-1] if started else self.parts[0]

    def target(self, step: int) -> float:
        """The target share of zeros at a step."""
        return self.part(step).target(step)

    def is_update(self, step: int) -> bool:
        """Whether masks are chosen anew at a step."""
        return any(part.is_update(step) for part in self.parts)

    def current_target(self, step: int) -> float:
        """The share of zeros at a step: the target of the last update until then."""
        return self.part(step).current_target(step)
