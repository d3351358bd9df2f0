"""The graph of a model as lines, with tracks in a margin for values read further down.

In: the nodes of a graph, in graph order. Out: `lines_of(nodes)`: a line for each region, and one for each run of dense
operators of a module; `tracks_of(lines)`: first line, last line and column of each value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sparsify.page.contents import GraphNode

# Tracks beyond so many columns are left out.
COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the drawn graph.

    Attributes:
        text: operators or region of the line.
        where: the module.
        shape: shape of the last result.
        region: the called region, "" for dense operators.
        count: number of operators in the line.
        reads: earlier lines with results read by the line.
    """

    text: str
    where: str
    shape: str
    region: str
    count: int
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """Track of a value in the margin: from the producing line to the last reader, in a column, with all readers."""

    first: int
    last: int
    column: int
    readers: tuple[int, ...]


def lines_of(nodes: Sequence[GraphNode]) -> list[Line]:
    """Lines of a graph: one for each region, input and result, and one for each run of dense operators of a module."""
    place: dict[str, int] = {}
    lines: list[Line] = []
    numbered = enumerate(nodes)
    for _, run in groupby(
        numbered,
        lambda pair: (pair[1].region or pair[1].operator, pair[0]) if _is_alone(pair[1]) else pair[1].where,
    ):
        members = [node for _, node in run]
        own = {node.name for node in members}
        reads = {place[name] for node in members for name in node.inputs if name not in own and name in place}
        operators = [node.operator for node in members]
        texts = [_counted(name, len(list(same))) for name, same in groupby(operators)]
        last = members[-1]
        text = last.region or ", ".join(texts)
        lines.append(Line(text, last.where, last.shape, last.region, len(members), tuple(sorted(reads))))
        place |= dict.fromkeys(own, len(lines) - 1)
    return lines


def _is_alone(node: GraphNode) -> bool:
    """Whether a node forms a separate line."""
    return bool(node.region) or node.operator in ("input", "output")


def _counted(name: str, count: int) -> str:
    """An operator, with the number of consecutive occurrences."""
    return name if count == 1 else f"{name} x{count}"


def tracks_of(lines: Sequence[Line]) -> list[Track]:
    """Tracks of values with readers beyond the next line, each in the first free column."""
    readers: dict[int, list[int]] = {}
    for number, line in enumerate(lines):
        for read in line.reads:
            readers.setdefault(read, []).append(number)
    free = [0] * COLUMNS
    tracks = []
    for first, found in sorted(readers.items()):
        if found == [first + 1]:
            continue
        column = next((at for at, end in enumerate(free) if end <= first), None)
        if column is not None:
            free[column] = found[-1]
            tracks.append(Track(first, found[-1], column, tuple(found)))
    return tracks
