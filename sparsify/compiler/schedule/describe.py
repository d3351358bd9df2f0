"""Directives in words, for readers of schedules.

In: `split k ko ki 64 tail 32 8`. Out: `k = 64 ko + ki; the last tile in pieces of 32, 8, the rest masked`.
"""

from typing import Final

from sparsify.compiler.schedule import directives as d

LIFETIMES: Final = {
    "register": "in registers",
    "thread": "in memory of its own for each thread",
    "memory": "in memory",
}


def gloss(directive: d.Directive) -> str:
    """The meaning of a directive."""
    match directive:
        case d.Order(nest=nest):
            return f"the loops{_of(nest)} from outside to inside"
        case d.Split(index, outer, inner, size, tail, masked):
            pieces = f"in pieces of {', '.join(map(str, tail))}, the rest masked" if tail else "masked"
            which = "every" if masked else "the last"
            return f"{index} = {size} {outer} + {inner}; {which} tile {pieces}"
        case d.Fuse(first, second, fused):
            return f"{fused} runs over all pairs of {first} and {second}"
        case d.Join(index, nest):
            return f"{nest} is computed in one loop over {index}, whose tiles are counted in it"
        case d.Merge(index):
            return f"neighbouring loops over {index} are one"
        case d.Pos(index, position, tensor):
            return f"{position} runs over the stored positions of {tensor}, {index} is read from them"
        case d.Precompute():
            return _precompute(directive)
        case d.Distribute(temporary):
            return f"what {temporary} collects is multiplied entry by entry and added to the result"
        case d.Recompute(temporary, after):
            return f"what comes after {after} computes {temporary} again"
        case d.Rescale(maximum, at):
            return f"each iteration of {at} has a {maximum} of what came so far, by which earlier sums are rescaled"
        case d.Pack(temporary, tensor, indices, at, scope, reader):
            place = f"inside {at}" if at else "first"
            stored = f"stored by {', '.join(indices)}{f' for {reader}' if reader else ''}"
            return f"{place}, {tensor} is copied to {temporary}, {stored}, {LIFETIMES[scope]}"
        case d.Vector(index, nest):
            return f"the iterations of {index}{_of(nest)} are the lanes of vector registers"
        case d.Unroll(index, nest):
            return f"the iterations of {index}{_of(nest)} are written out"
        case d.Parallel():
            return _parallel(directive)
        case d.Prefetch(tensor, distance):
            return f"what is gathered from {tensor} {distance} stored positions later is asked for now"
        case d.Transpose(rows, lanes, nest):
            return f"square tiles of {rows} and {lanes} that {nest} reads are transposed in registers"
        case _:
            raise AssertionError(f"no words for {type(directive).__name__}")


def _of(nest: str) -> str:
    return f" of {nest}" if nest else ""


def _precompute(directive: d.Precompute) -> str:
    name, where = directive.temporary, LIFETIMES[directive.scope]
    if directive.over:
        return f"each iteration of {directive.over} has a {directive.source} of its own, {name}, combined at the end"
    place = f"inside {directive.at}" if directive.at else "before all loops"
    if directive.source:
        return f"{place}, {name} collects what is added to {directive.source}, {where}"
    return f"{place}, {name} is computed right before it is read, {where}"


def _parallel(directive: d.Parallel) -> str:
    share = {
        "static": "equal ranges of its iterations",
        "balanced": f"ranges with equally many stored positions of {directive.by}",
        "dynamic": "one chunk after the other",
    }[directive.policy]
    if directive.policy == "dynamic" and directive.by:
        share += f", each with equally many stored positions of {directive.by}"
    nest = f" in the nest of {directive.nest}" if directive.nest else ""
    hubs = f"; all share the sums of a row of more than {directive.hubs:,}" if directive.hubs else ""
    return f"threads take {share}{nest}{hubs}"
