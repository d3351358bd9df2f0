"""The translation unit under construction: vector types and helper functions, each emitted once when used.

In: `unit.use("load", "float32", 8)`. Out: the name `load_float32x8`; the unit then holds the definitions of the
function and of all its dependencies, in topological order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.cpp.helpers import types

INDENT: Final = "  "

Template = Callable[["Unit", str, int], str]


def indent(lines: Iterable[str]) -> list[str]:
    """The lines indented by one step; preprocessor directives stay at the margin."""
    return [line if line.startswith("#") else INDENT + line for line in lines]


@dataclass
class Unit:
    """Definitions in topological order.

    Attributes:
        templates: functions writing the definition of a helper for a dtype and a number of lanes, by helper.
        complex_templates: templates with precedence for complex numbers.
        regions: functions of parallel loops.
        computes_in_regions: whether only the regions are worth the compile time of optimization.
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
        """The C++ type; defined first if a vector."""
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
        """A declaration before all else, such as of a function of the C library."""
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
