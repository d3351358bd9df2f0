"""Schedules for row-wise chains over single entries that hold a chunk of a row at a time.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, M compressed by row.
Out: `pos j p M; split p pc pr 128; split pr po pi 16; ..; order S: h, i, pc, po, pi; ..; rescale m at pc; ..`

The loops are those of `entry_rows`, with one more around the entries of a chunk.
"""

from dataclasses import dataclass, replace
from typing import Final

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.directives.rescale import PART
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain
from sparsify.compiler.schedule.templates.row_chain.chunks import Chunks, Steps, held
from sparsify.compiler.schedule.templates.row_chain.entry_rows import EntryRows

# Vectors of entries in a chunk.
CHUNK_VECTORS: Final = 8


@dataclass(frozen=True, slots=True)
class EntryChunks(Chunks[EntryRows]):
    """The loops over the entries of rows, cut into chunks."""

    def schedule(self, first: Steps, chain: RowChain, maximum: str) -> d.Schedule:
        """The schedule of a chain, prefixed by `first`; `maximum` names the rescaled maximum, "" for none."""
        rows, name = replace(self.whole, chain=chain), chain.fresh
        position, chunk, inside = name("p"), name("pc"), name("pr")
        group, member = name("po"), name("pi")
        steps = [
            *first,
            *chain.fused(),
            d.Pos(chain.listed, position, chain.mask.name),
            d.Split(position, chunk, inside, CHUNK_VECTORS * rows.lanes),
            d.Split(inside, group, member, rows.lanes),
        ]
        made, splits = rows.splits()
        steps += made
        around = rows.around()
        for nest in chain.nests:
            steps.append(_order(nest, around, (*around, chunk, group, member), splits))
        if maximum:
            steps.append(d.Rescale(maximum, chunk))
        for nest in chain.nests:
            steps += _collected(nest, (chunk, group, member), splits, chain, maximum)
        steps += held(chain, chunk, around[-1])
        for nest in chain.nests:
            steps += _kinds(nest, member, splits, chain, maximum)
        return d.Schedule((*steps, rows.shared()))


def _order(
    nest: Nest, around: tuple[str, ...], entries: tuple[str, ...], splits: dict[str, tuple[str, str]]
) -> d.Order:
    """The loop order of a nest."""
    outer, inner = splits.get(nest.lane, ("", ""))
    match nest.kind:
        case "scores" | "entries" | "reduction":
            return d.Order(entries, nest.result)
        case "product":
            chunk, *within = entries[len(around) :]
            return d.Order((*around, chunk, outer, *within, inner), nest.result)
    return d.Order((*around, outer, inner) if inner else around, nest.result)


def _collected(
    nest: Nest,
    entries: tuple[str, str, str],
    splits: dict[str, tuple[str, str]],
    chain: RowChain,
    maximum: str,
) -> Steps:
    """The register accumulators of a nest, over a chunk."""
    chunk, group, member = entries
    name = chain.fresh
    outer, inner = splits.get(nest.lane or nest.inner, ("", ""))
    match nest.kind:
        case "scores":
            return [
                d.Precompute(nest.summed, "register", at=group),
                d.Order((outer, member, inner), nest.summed),
                d.Precompute(name(f"lanes_{nest.summed}"), "register", source=nest.summed, over=inner),
            ]
        case "reduction":
            source = name(nest.result + PART) if maximum else name(f"row_{nest.result}")
            lanes = d.Precompute(name(f"lanes_{nest.result}"), "register", source=source, over=member)
            first = d.Precompute(source, "register", at=chunk, source=nest.result)
            return [lanes] if maximum else [first, lanes]
        case "product" if maximum:
            return [d.Precompute(name(nest.result + PART), "register", at=outer)]
        case "product":
            return [d.Precompute(name(f"sum_{nest.result}"), "register", at=outer, source=nest.result)]
    return []


def _kinds(
    nest: Nest, member: str, splits: dict[str, tuple[str, str]], chain: RowChain, maximum: str
) -> Steps:
    """Unrolled and vectorized loops."""
    name = chain.fresh
    _, inner = splits.get(nest.lane or nest.inner, ("", ""))
    match nest.kind:
        case "scores":
            lanes = name(f"lanes_{nest.summed}")
            written = [d.Unroll(member, each) for each in (lanes, nest.summed, nest.result)]
            return [*written, *(d.Vector(inner, each) for each in (lanes, nest.summed))]
        case "entries":
            return [d.Vector(member, nest.result)]
        case "reduction":
            source = name(nest.result + PART) if maximum else name(f"row_{nest.result}")
            return [d.Vector(member, each) for each in (name(f"lanes_{nest.result}"), source)]
        case "product":
            source = name(nest.result + PART) if maximum else name(f"sum_{nest.result}")
            return [d.Vector(inner, each) for each in (source, nest.result)]
    return [d.Vector(inner, nest.result)] if inner else []
