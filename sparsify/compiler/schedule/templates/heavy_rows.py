"""Hub rows: which rows of an operand are so long that the threads share each of them.

In: `parallel i dynamic A`, A with 2,000,000 entries of which one row has the half, and 128 columns.
Out: `parallel i dynamic A hubs 32768`.

Which rows they are does not depend on the number of threads, so that sums are rounded alike on any number of them,
and of the operands on powers of two alone: those that share a kernel have the same rows shared, whichever came first.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes

# Chunks of rows that threads take have at least such a part of all entries; a longer row keeps one thread busy while
# the others have nothing left.
SHARE: Final = 64
# Entries of a row that take far longer than it takes to start threads, of one column and of many: about 100 us.
LEAST_NARROW: Final = 1 << 17
LEAST_WIDE: Final = 1 << 13
# Columns that take as long as one, as each entry is read once.
NARROW: Final = 8


def with_hubs(program: Notation | Program, schedule: d.Schedule, sizes: Sizes) -> Iterator[d.Schedule]:
    """The schedule with long rows shared, where there are some, then the schedule."""
    for place, directive in enumerate(schedule.directives):
        if isinstance(directive, d.Parallel) and directive.policy == "dynamic" and directive.by:
            entries = hub_entries(program, directive.by, sizes)
            if entries:
                before, after = schedule.directives[:place], schedule.directives[place + 1 :]
                yield d.Schedule((*before, replace(directive, hubs=entries), *after))
                break
    yield schedule


def hub_entries(program: Notation | Program, name: str, sizes: Sizes) -> int:
    """The most entries of a row of an operand that one thread takes; 0 where no row has twice as many."""
    stored, longest = sizes.stored.get(name), sizes.longest_row(name)
    declared = next((found for found in program.declarations if found.name == name), None)
    if declared is None or not stored or not longest:
        return 0
    least = max(LEAST_WIDE, LEAST_NARROW // max(1, _columns(program, declared, sizes) // NARROW))
    entries = max(1 << (least - 1).bit_length(), (1 << stored.bit_length() - 1) // SHARE)
    return entries if longest.bit_length() > entries.bit_length() else 0


def _columns(program: Notation | Program, operand: Declaration, sizes: Sizes) -> int:
    """The number of numbers of a result that an entry adds to, of the largest one where there are several."""
    known = {**sizes.extents, **dict(program.extents)}
    results = [declared for declared in program.declarations if declared.name in program.outputs]
    free = [set(declared.extents) - set(operand.extents) for declared in results]
    return max((prod(max(1, known.get(name, 1)) for name in names) for names in free), default=1)


def said(program: Program, sizes: Sizes) -> list[str]:
    """Why rows of operands are shared, in words."""
    return [
        f"{name}: the longest row has {sizes.longest_row(name):,} of {sizes.stored[name]:,} entries; all threads share "
        f"each row of more than {entries:,}, where its sums are in registers"
        for name in program.inputs
        if (entries := hub_entries(program, name, sizes))
    ]
