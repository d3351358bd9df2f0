"""Row-wise chains in two passes over a row, without a strip: the second pass needs a number found by the first.

In:  the chain of `S = Q K; m max= S; P = exp(S - m); d += P; Y += P V / d`.
Out: `TwoPasses(end=1, again=("S",), is_rescaled=True)`: the first pass ends with `m`, the second reads `S`, and its
sums can be rescaled, so that one pass suffices.
"""

from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.schedule.directives.rescale import is_linear, is_relative
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

ENTRIES = ("scores", "entries")


@dataclass(frozen=True, slots=True)
class TwoPasses:
    """The cut of a chain into two passes.

    Attributes:
        end: number of the nest that ends the first pass: a number a row.
        again: entries that both passes need, in reverse order of their nests.
        is_rescaled: whether the sums of the second pass are multiples of `exp(S - m)`, with `m` from the first pass.
    """

    end: int
    again: tuple[str, ...]
    is_rescaled: bool


def two_passes(chain: RowChain) -> TwoPasses | None:
    """The two passes of a chain; `None` for other chains, and for passes that write results themselves."""
    nests = chain.nests
    ends = [number for number, nest in enumerate(nests) if nest.kind not in ENTRIES]
    if not ends:
        return None
    end = ends[0]
    inside = {*chain.held, *chain.collected}
    if nests[end].kind != "reduction" or any(n.kind != "rows" and n.result not in inside for n in nests):
        return None
    second = [nest for nest in nests[end + 1 :] if nest.kind != "rows"]
    rows = nests[end + 1 + len(second) :]
    if any(nest.kind not in (*ENTRIES, "reduction", "product") for nest in second):
        return None
    if any(nest.kind != "rows" for nest in rows):
        return None
    found = {nest.result for nest in second if nest.kind not in ENTRIES}
    if any(found & _reads(nest) for nest in second) or not found:
        return None
    again: list[str] = []
    wanted = {name for nest in second for name in _reads(nest)}
    for nest in reversed(nests[:end]):
        if nest.result in wanted:
            again.append(nest.result)
            wanted |= _reads(nest)
    first = {nest.result for nest in nests[:end]}
    if not again or any(first & _reads(nest) for nest in rows):
        return None
    return TwoPasses(end, tuple(again), _is_rescaled(nests[end], second, rows))


def _is_rescaled(maximum: Nest, second: list[Nest], rows: tuple[Nest, ...]) -> bool:
    """Whether the second pass sums multiples of `exp(S - m)` only, and nothing else reads the relative entries."""
    if maximum.assign.monoid != "max":
        return False
    relative: set[str] = set()
    for nest in second:
        value = nest.assign.value
        if not _reads(nest) & {maximum.result, *relative}:
            if nest.kind not in ENTRIES:
                return False
            continue
        is_shifted = is_relative(value, maximum.result, maximum.assign.value)
        if nest.kind not in ENTRIES and (nest.assign.monoid != "sum" or is_shifted):
            return False
        if not is_shifted and not is_linear(value, relative, {maximum.result}):
            return False
        if nest.kind in ENTRIES:
            relative.add(nest.result)
    return not any(relative & _reads(nest) for nest in rows)


def _reads(nest: Nest) -> set[str]:
    """The operands of a nest; for scores without the operands of the sum."""
    return {access.tensor for access in find(nest.assign.value, Access)}
