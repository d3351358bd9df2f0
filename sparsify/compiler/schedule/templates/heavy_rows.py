"""Heavy rows: rows of an operand so long that all threads share each of them.

In: `parallel i dynamic A`, A with 2,000,000 entries, half of them in one row, and 128 columns.
Out: `parallel i dynamic A hubs 32768`.

The threshold does not depend on the number of threads, so that sums round alike for any number, and depends on the
operands by powers of two only: all operands that share a kernel have the same shared rows, whichever came first.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes

# Threads take chunks of at least 1 / SHARE of all entries; a longer row keeps one thread busy while the others idle.
SHARE: Final = 64
# Fewest entries of a heavy row, for one column and for many: about 100 us, far longer than the start of threads.
LEAST_NARROW: Final = 1 << 17
LEAST_WIDE: Final = 1 << 13
# Columns that take as long as one, since the time is that of reading entries.
NARROW: Final = 8


def with_hubs(program: Notation | Program, schedule: d.Schedule, sizes: Sizes) -> Iterator[d.Schedule]:
    """The schedule with shared heavy rows, if any, then the schedule."""
    for place, directive in enumerate(schedule.directives):
        if isinstance(directive, d.Parallel) and directive.policy == "dynamic" and directive.by:
            entries = hub_entries(program, directive.by, sizes)
            if entries:
                before, after = schedule.directives[:place], schedule.directives[place + 1 :]
                yield d.Schedule((*before, replace(directive, hubs=entries), *after))
                break
    yield schedule


def hub_entries(program: Notation | Program, name: str, sizes: Sizes) -> int:
    """The most entries of a row for one thread; 0 if no row is twice as long."""
    stored, longest = sizes.stored.get(name), sizes.longest_row(name)
    declared = next((found for found in program.declarations if found.name == name), None)
    if declared is None or not stored or not longest:
        return 0
    least = max(LEAST_WIDE, LEAST_NARROW // max(1, _columns(program, declared, sizes) // NARROW))
    entries = max(1 << (least - 1).bit_length(), (1 << stored.bit_length() - 1) // SHARE)
    return entries if longest.bit_length() > entries.bit_length() else 0


def _columns(program: Notation | Program, operand: Declaration, sizes: Sizes) -> int:
    """The number of result elements to which an entry contributes, for the largest result."""
    known = {**sizes.extents, **dict(program.extents)}
    results = [declared for declared in program.declarations if declared.name in program.outputs]
    free = [set(declared.extents) - set(operand.extents) for declared in results]
    return max((prod(max(1, known.get(name, 1)) for name in names) for names in free), default=1)


def said(program: Program, sizes: Sizes) -> list[str]:
    """Report lines about shared rows of operands."""
    return [
        f"{name}: the longest row has {sizes.longest_row(name):,} of {sizes.stored[name]:,} entries; all threads share "
        f"each row of more than {entries:,}, where its sums are in registers"
        for name in program.inputs
        if (entries := hub_entries(program, name, sizes))
    ]
