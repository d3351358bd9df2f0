"""The translation unit under construction: vector types and helper functions, each emitted once when used.

In: `unit.use("load", "float32", 8)`. Out: the name `load_float32x8`; the unit then holds its definition and
those of everything it needs, in an order that compiles.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.cpp.helpers import types

INDENT: Final = "  "

Template = Callable[["Unit", str, int], str]


def indent(lines: Iterable[str]) -> list[str]:
    """The lines one step further in; directives of the preprocessor stay at the margin."""
    return [line if line.startswith("#") else INDENT + line for line in lines]


@dataclass
class Unit:
    """Definitions in the order in which they are needed.

    Attributes:
        templates: per helper the function that writes its definition for a dtype and a number of lanes.
        complex_templates: those that come first for complex numbers.
        regions: the functions of parallel loops.
        computes_in_regions: whether nothing but these is worth the time that making it fast takes.
    """

    templates: Mapping[str, Template]
    complex_templates: Mapping[str, Template] = field(default_factory=dict)
    unsigned: bool = False
    vectors: set[tuple[str, int]] = field(default_factory=set)
    declarations: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    regions: list[str] = field(default_factory=list)
    computes_in_regions: bool = False

    def type(self, dtype: str, lanes: int) -> str:
        """The C++ type, defined when it is a vector."""
        self.unsigned |= dtype.startswith("uint")
        if lanes > 1:
            assert dtype != "bool", "a vector of bool is a mask of integers"
            self.vectors.add((dtype, lanes))
        return types.spelling(dtype, lanes)

    def use(self, helper: str, dtype: str, lanes: int) -> str:
        """The name of a helper function for `dtype` and `lanes`, defined once."""
        name = f"{helper}_{types.suffix(dtype, lanes)}"
        if name not in self.definitions:
            own = self.complex_templates.get(helper) if dtype.startswith("complex") else None
            text = (own or self.templates[helper])(self, dtype, lanes)
            self.definitions[name] = text
        return name

    def declare(self, name: str, text: str) -> None:
        """A declaration, such as of a function of the C library, that comes before all else."""
        self.declarations.setdefault(name, text)

    def text(self, kernel: str) -> str:
        """The whole unit around the text of the kernel function."""
        vectors = [types.definition(dtype, lanes) for dtype, lanes in sorted(self.vectors)]
        declarations = [self.declarations[name] for name in sorted(self.declarations)]
        others = [*vectors, *declarations, *self.definitions.values(), *self.regions, kernel]
        head = [types.INTEGER_TYPES + (f"\n{types.UNSIGNED_TYPES}" if self.unsigned else "")]
        if any("uint16_t" in part for part in others):
            head[0] += f"\n{types.HALF_TYPE}"
        if self.vectors:
            head.append("\n".join(['#pragma GCC diagnostic ignored "-Wpsabi"', *vectors]))
        parts = [*head, *declarations, *self.definitions.values(), *self.regions, kernel]
        return "\n\n".join(part.strip("\n") for part in parts) + "\n"
