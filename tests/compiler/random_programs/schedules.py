"""Random schedules: directives over existing names, kept as far as applicable.

In: `Drawn(7)(step, sizes)`. Out: a prefix of a schedule of the compiler with further directives, applicable as a
whole; then shorter prefixes, because lowering may refuse the whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import walk
from sparsify.compiler.notation.concretize import concretize, index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Split
from sparsify.compiler.pipeline import schedules
from sparsify.compiler.plan.plan import Step
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.directives import apply
from sparsify.compiler.schedule.nests import loop_chain
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.errors import ScheduleError
from tests.compiler.random_programs.generate import WIDTHS

SIZES = (2, 3, 4, 8)
MOST = 7
OFFERED = 24
MANY = 1_000_000


class Offered:
    """Random permutation of the compiler's candidate schedules."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 4])

    def __call__(self, step: Step, sizes: Sizes) -> Iterator[d.Schedule]:
        """Schedules for the step."""
        program = infer_format(step.program)
        width = int(self.rng.choice(WIDTHS))
        known = sizes if self.rng.random() < 0.5 else UNKNOWN
        offered = schedules(program, concretize(program), width, known)
        found = list(dict.fromkeys(islice(offered, OFFERED)))
        for number in self.rng.permutation(len(found)):
            yield found[int(number)]


class Shared:
    """Candidate schedules of the compiler, with heavy rows (of a few entries) shared by threads if possible."""

    def __init__(self, seed: int) -> None:
        self.offered = Offered(seed)
        self.entries = int(np.random.default_rng([seed, 5]).integers(1, 4))

    def __call__(self, step: Step, sizes: Sizes) -> Iterator[d.Schedule]:
        """Schedules for the step."""
        offered = list(self.offered(step, sizes))
        yield from (shared for schedule in offered for shared in self.in_hubs(schedule))
        yield from offered

    def in_hubs(self, schedule: d.Schedule) -> Iterator[d.Schedule]:
        """Schedule with heavy rows shared, for each loop parallel by positions."""
        for place, directive in enumerate(schedule.directives):
            if isinstance(directive, d.Parallel) and directive.by:
                changed = list(schedule.directives)
                changed[place] = replace(directive, hubs=self.entries)
                yield d.Schedule(tuple(changed))


class Padded:
    """Schedules for so many crowded entries that rows of scattered sums are padded."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 6])

    def __call__(self, step: Step, sizes: Sizes) -> Iterator[d.Schedule]:
        """Schedules for the step."""
        program = infer_format(step.program)
        stored = dict.fromkeys(sizes.stored, MANY)
        known = Sizes(sizes.extents, stored, crowdings=dict.fromkeys(stored, 1.0))
        width = int(self.rng.choice(WIDTHS[1:]))
        yield from islice(schedules(program, concretize(program), width, known), OFFERED)


class Drawn:
    """Schedules from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 1])
        self.hubs = np.random.default_rng([seed, 5])
        self.fresh = 0

    def __call__(self, step: Step, sizes: Sizes) -> Iterator[d.Schedule]:
        """Schedules for the step."""
        program = infer_format(step.program)
        tree = concretize(program)
        chosen = self.one(list(islice(schedules(program, tree, int(self.rng.choice(WIDTHS))), 4)))
        start = chosen.directives[: int(self.rng.integers(0, 1 + len(chosen.directives)))]
        found: list[d.Directive] = []
        for number in range(len(start) + int(self.rng.integers(0, MOST))):
            directive = start[number] if number < len(start) else self.directive(tree)
            try:
                tree = apply(tree, d.Schedule((directive,)))
            except ScheduleError:
                continue
            found.append(directive)
        for count in range(len(found), -1, -1):
            yield d.Schedule(tuple(found[:count]))

    def directive(self, tree: Notation) -> d.Directive:
        """Random directive over the loops and tensors of `tree`."""
        loops = [n.index for n in walk(tree.body) if isinstance(n, Forall)] or ["i"]
        assigns = [n for n in walk(tree.body) if isinstance(n, Assign)]
        lets = [t.name for n in walk(tree.body) if isinstance(n, Let) for t in n.temporaries]
        index, assign = self.one(loops), self.one(assigns)
        nest = assign.target.tensor
        match int(
            self.rng.choice(12, p=(0.16, 0.14, 0.05, 0.09, 0.12, 0.1, 0.12, 0.05, 0.09, 0.03, 0.03, 0.02))
        ):
            case 0:
                chain, _ = loop_chain(
                    self.one([n for n in walk(tree.body) if isinstance(n, Forall)] or [assign])
                )
                names = tuple(
                    str(name) for name in self.rng.permutation([loop.index for loop in chain] or loops)
                )
                return d.Order(names, nest if self.rng.random() < 0.3 else "")
            case 1:
                return self.split(index)
            case 2:
                return d.Fuse(index, self.one(loops), self.name("f"))
            case 3:
                return d.Pos(index, self.name("p"), self.one(tree.inputs) if tree.inputs else nest)
            case 4:
                at = "" if self.rng.random() < 0.1 else index
                kept = self.kept()
                return d.Precompute(self.one(lets) if lets else nest, self.one(tuple(d.SCOPES)), at, **kept)
            case 5:
                name, scope = self.name("s"), self.one(tuple(d.SCOPES))
                if self.rng.random() < 0.5:
                    at = "" if self.rng.random() < 0.1 else index
                    return d.Precompute(name, scope, at, nest, **self.kept())
                return d.Precompute(name, scope, source=nest, over=index)
            case 6:
                return d.Vector(index, nest if self.rng.random() < 0.3 else "")
            case 7:
                return d.Unroll(index, nest if self.rng.random() < 0.3 else "")
            case 8:
                policy = str(self.rng.choice(["static", "balanced", "dynamic"]))
                by = self.one(tree.inputs) if tree.inputs and self.rng.random() < 0.4 else ""
                hubs = int(self.hubs.choice([0, 1, 3])) if by else 0
                return d.Parallel(index, policy, by, int(self.rng.choice([1, 1, 3])), hubs=hubs)
            case 9:
                return self.pack(tree, index)
            case 10:
                halves = [r.index for r in tree.relations if isinstance(r, Split)]
                return d.Join(self.one(halves) if halves else index, nest)
        return d.Transpose(index, self.one(loops), nest)

    def split(self, index: str) -> d.Split:
        """A split into tiles of a few."""
        size = int(self.rng.choice(SIZES))
        tail = tuple(t for t in (4, 2, 1) if t < size and self.rng.random() < 0.4)
        masked = not tail and self.rng.random() < 0.4
        return d.Split(index, f"{index}o", f"{index}i", size, tail, masked)

    def kept(self) -> dict[str, bool]:
        """Random bookkeeping of a temporary: rarely a list of coordinates, or marks."""
        draw = self.rng.random()
        return {"listed": draw < 0.08, "marked": 0.08 <= draw < 0.12}

    def pack(self, tree: Notation, index: str) -> d.Directive:
        """A copy of an operand, or a prefetch of it."""
        tensor = self.one(tree.inputs) if tree.inputs else "A"
        if self.rng.random() < 0.3:
            return d.Prefetch(tensor, int(self.rng.integers(1, 9)))
        reads = [n for n in walk(tree.body) if isinstance(n, Access) and n.tensor == tensor]
        names = [str(n) for n in self.rng.permutation(list(index_names(self.one(reads))))] if reads else []
        kept = tuple(name for name in names if self.rng.random() < 0.8)
        return d.Pack(self.name("P"), tensor, kept, index, self.one(tuple(d.SCOPES)))

    def name(self, letter: str) -> str:
        """A fresh name."""
        self.fresh += 1
        return f"{letter}{self.fresh}q"

    def one(self, among: Sequence[Any]) -> Any:
        """A random element."""
        return among[int(self.rng.integers(len(among)))]
