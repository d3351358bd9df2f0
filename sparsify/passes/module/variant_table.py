"""What became of the captures of a model: variants, and reasons why there is none.

In: `captures.add(like, variant)`. Out: `captures.fitting(like, shapes)`, for calls of that mode and structure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sparsify.passes.capture.calls import CallShape
from sparsify.passes.capture.shell import Modes
from sparsify.passes.module.variant import Variant

# What calls must have in common to share a graph: modes, and the structure of the arguments.
Likeness = tuple[Modes, CallShape]


@dataclass
class Captures:
    """Variants in the order in which they were captured, and what could not be captured.

    Attributes:
        known: variants and the calls that they are for; of alike ones each has extents of its own.
        refused: why calls are not captured, nor any that are alike.
    """

    known: list[tuple[Likeness, Variant]] = field(default_factory=list)
    refused: dict[Likeness, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """How often a model was captured, or refused to be."""
        return len(self.known) + len(self.refused)

    def __iter__(self) -> Iterator[Variant]:
        return (variant for _, variant in self.known)

    def add(self, like: Likeness, variant: Variant) -> None:
        """A further variant."""
        self.known.append((like, variant))

    def constants(self) -> dict[str, Tensor]:
        """The tensors that captures made, by the names that they have in the module of all of them."""
        return {name: constant for variant in self for name, constant in variant.captured.constants.items()}

    def forget(self) -> None:
        """No captures any more, as if none had been made."""
        self.known.clear()
        self.refused.clear()

    def fitting(self, like: Likeness, shapes: tuple[Any, ...]) -> Variant | None:
        """The first variant for such calls with tensors of these shapes."""
        return next(
            (variant for known, variant in self.known if known == like and variant.fits(shapes)), None
        )

    def shown(self, modes: Modes) -> Variant | None:
        """The variant of a mode that fits most calls: most of its extents may vary, and they need no earlier calls."""
        known = [
            ((not shape.has_past, variant.varying()), variant)
            for (mode, shape), variant in self.known
            if mode == modes
        ]
        return max(known, key=lambda found: found[0], default=(None, None))[1]

    def may_write(self, modes: Modes) -> bool:
        """Whether calls in a mode may write into what they bring, which is not known before one is captured."""
        known = [variant for (mode, _), variant in self.known if mode == modes]
        return not known or self.has_refused(modes) or any(variant.writes() for variant in known)

    def has_refused(self, modes: Modes) -> bool:
        """Whether a call in this mode could not be captured."""
        return any(mode == modes for mode, _ in self.refused)

    def traced(self, modes: Modes, told: Any, shapes: tuple[Any, ...]) -> Variant | None:
        """The first variant for calls of which `told` is known, with tensors of these shapes; nothing is kept."""
        for (mode, shape), variant in self.known:
            if mode == modes and shape.told == told and variant.admits(shapes):
                return variant
        return None

    def are_refused(self, modes: Modes, told: Any) -> bool:
        """Whether calls of which `told` is known could not be captured."""
        return any(mode == modes and shape.told == told for mode, shape in self.refused)
