"""Candidate schedules of one statement, from the shape of its loops and the sizes of its operands.

In: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`, A compressed by row, 8 lanes, 128 columns.
Out: `split k ko ki 128; order i, ko, j, ki; precompute w at ko in register; vector ki; parallel i dynamic A`

Templates propose schedules of known shapes, the best first. A program without a template has the schedules of the
search, if their estimates are well below that of the default. Sizes only rank schedules: every kernel is correct for
operands of all sizes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.search.searched import Searched, searched
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.schedule.templates import sparse_linear
from sparsify.compiler.schedule.templates.compressed_rows import dropped
from sparsify.compiler.schedule.templates.experts import experts
from sparsify.compiler.schedule.templates.gemm import tiles
from sparsify.compiler.schedule.templates.joint_reductions import aggregates
from sparsify.compiler.schedule.templates.joint_statements import joined
from sparsify.compiler.schedule.templates.one_nest import OneNest, nests_of
from sparsify.compiler.schedule.templates.panels import panels
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.row_nests import row_nests
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways
from sparsify.compiler.schedule.templates.sddmm import sampled
from sparsify.compiler.schedule.templates.spgemm import scattered
from sparsify.compiler.schedule.templates.transposed_copies import transposed_copies


@dataclass(frozen=True, slots=True)
class Request:
    """A program to schedule, with what is known of its operands.

    Attributes:
        program: notation before its schedule.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        sizes: known sizes of the operands.
        order: loop order, if chosen by cost.
    """

    program: Notation
    lanes: int
    item_bytes: int
    sizes: Sizes
    order: tuple[str, ...]


Schedules = Iterator[d.Schedule]


def _sampled(request: Request) -> Schedules:
    """Sums at the stored entries of one operand: its positions alone are not those of several."""
    if (found := sampled(request.program)) is not None and not found.has_several_masks:
        yield from found.schedules(request.lanes, request.item_bytes, request.sizes)


def _dropped(request: Request) -> Schedules:
    """Rows from which entries equal to the fill are dropped."""
    if (found := dropped(request.program)) is not None:
        yield from found.schedules(request.lanes)


def _scattered(request: Request) -> Schedules:
    """Sums scattered into rows of unknown pattern."""
    if (found := scattered(request.program)) is not None:
        yield from found.schedules(request.sizes, request.order)


def _panels(request: Request) -> Schedules:
    """Products with a sparse weight in panels."""
    if (found := panels(request.program)) is not None:
        yield from sparse_linear.schedules(found, request.lanes, request.item_bytes, request.sizes)


def _tiles(request: Request) -> Schedules:
    """Products of dense or blocked matrices in register tiles."""
    if (found := tiles(request.program)) is not None:
        yield from found.schedules(request.lanes, request.item_bytes, request.sizes)


def _experts(request: Request) -> Schedules:
    """Mixtures of experts."""
    if (found := experts(request.program)) is not None:
        yield from found.schedules(request.lanes, request.item_bytes, request.sizes)


def _row_chain(request: Request) -> Schedules:
    """Attention, row by row."""
    if (chain := row_chain(request.program)) is not None:
        yield from (way.schedule for way in row_ways(chain, request.lanes, request.item_bytes, request.sizes))


def _aggregates(request: Request) -> Schedules:
    """Several reductions over the same rows."""
    if (found := aggregates(request.program)) is not None:
        yield from found.schedules(request.lanes, request.item_bytes, request.sizes)


def _row_nests(request: Request) -> Schedules:
    """Statements that read values of the same row only."""
    if (rows := row_nests(request.program)) is not None and not rows.is_one_sum:
        yield from rows.schedules(request.lanes, request.item_bytes, request.sizes)


def _joined(request: Request) -> Schedules:
    """Statements of the same rows in one loop."""
    yield from joined(request.program)


# Templates in the order of their candidates. Programs of the exclusive ones have no other candidates.
TEMPLATES: Final[Mapping[str, Callable[[Request], Schedules]]] = {
    "sddmm": _sampled,
    "compressed_rows": _dropped,
    "spgemm": _scattered,
    "panels": _panels,
    "gemm": _tiles,
    "experts": _experts,
    "row_chain": _row_chain,
    "joint_reductions": _aggregates,
    "row_nests": _row_nests,
    "joint_statements": _joined,
}
EXCLUSIVE: Final = ("sddmm", "compressed_rows")


def candidates(
    program: Notation,
    lanes: int,
    item_bytes: int,
    sizes: Sizes = UNKNOWN,
    order: tuple[str, ...] = (),
    without: Collection[str] = (),
) -> Schedules:
    """Candidate schedules for `program`, the best first; the last ones always lower.

    Args:
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        sizes: known sizes of the operands.
        order: loop order, if chosen by cost.
        without: names of templates that are left out, and "search".
    """
    request = Request(program, lanes, item_bytes, sizes, order)
    has_template = False
    for name, template in TEMPLATES.items():
        if name in without:
            continue
        for schedule in template(request):
            has_template = True
            yield schedule
        if has_template and name in EXCLUSIVE:
            return
    if not has_template and "search" not in without:
        found = searched(program, lanes, item_bytes, sizes, order, _defaults(request))
        yield from () if found is None else found.better
    yield from _defaults(request)


def search_of(
    program: Notation, lanes: int, item_bytes: int, sizes: Sizes, order: tuple[str, ...] = ()
) -> Searched | None:
    """The searched schedules of a program; `None` with a template, for unknown sizes, and for little work."""
    request = Request(program, lanes, item_bytes, sizes, order)
    if any(next(template(request), None) is not None for template in TEMPLATES.values()):
        return None
    return searched(program, lanes, item_bytes, sizes, order, _defaults(request))


def _defaults(request: Request) -> Schedules:
    """The schedules of a program without a template, and those that always lower."""
    program, sizes = request.program, request.sizes
    if (samples := sampled(program)) is not None and samples.has_several_masks:
        yield from samples.one_at_a_time()
        return
    nests = nests_of(program)
    rest = program, nests, request.lanes, request.item_bytes, sizes
    if len(nests) <= 2:
        shape = OneNest(*rest, request.order)
        if (copies := transposed_copies(program, shape.order, shape.lane)) is not None:
            found = list(copies.schedules(request.lanes, request.item_bytes, sizes))
            yield from found
            if not found and copies.is_ordered_for_copies:
                shape = OneNest(*rest, ())
        yield shape.schedule(parallel=True)
        yield shape.schedule(parallel=True, sets=False)
        yield shape.schedule(parallel=False)
        yield shape.schedule(parallel=False, vector=False)
        yield d.Schedule((d.Order(tuple(shape.order)),)) if len(shape.order) > 1 else d.Schedule()
    yield from OneNest(*rest, request.order).around()
    yield d.Schedule()
