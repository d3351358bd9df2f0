"""Loops shared by threads: `parallel i balanced A`.

In: `forall i: body` and `parallel i`. Out: `parallel forall i: body`, if iterations write different entries.
"""

from dataclasses import dataclass
from typing import ClassVar

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Notation
from sparsify.compiler.notation.provenance import Provenance
from sparsify.compiler.schedule.directives.directive import IN_NEST, NAME, Directive, in_nest
from sparsify.compiler.schedule.nests import assigns, with_kind
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Parallel(Directive):
    """`parallel i [in w] [static | balanced A | dynamic A] [chunks 32]`: threads share the iterations of `i`.

    `parallel i dynamic A hubs 65536`: all threads share the sums of a row of `A` with more stored positions.
    """

    form: ClassVar[str] = "parallel i [in w] [static|balanced A|dynamic [A]] [chunks 32] [hubs 65536]"
    pattern: ClassVar[str] = (
        rf"parallel\s+(?P<index>{NAME}){IN_NEST}"
        rf"(?:\s+(?P<policy>static|balanced|dynamic)(?:\s+(?!(?:chunks|hubs)\b)(?P<by>{NAME}))?)?"
        r"(?:\s+chunks\s+(?P<chunks>\d+))?(?:\s+hubs\s+(?P<hubs>\d+))?"
    )

    index: str
    policy: str = "static"
    by: str = ""
    chunks: int = 1
    nest: str = ""
    hubs: int = 0

    def __str__(self) -> str:
        by = f" {self.by}" if self.by else ""
        chunks = f" chunks {self.chunks}" if self.chunks != 1 else ""
        hubs = f" hubs {self.hubs}" if self.hubs else ""
        return f"parallel {self.index}{in_nest(self.nest)} {self.policy}{by}{chunks}{hubs}"

    def check(self, text: str) -> None:
        """Raises for no chunks, and for heavy rows of no tensor."""
        if self.chunks < 1:
            raise ScheduleError(f"`{text}`: {self.chunks} chunks", "one or more")
        if self.hubs and not self.by:
            raise ScheduleError(
                f"`{text}`: {self.hubs} positions of which rows?", "parallel i dynamic A hubs 65536"
            )

    def describe(self) -> str:
        """The meaning in words."""
        share = {
            "static": "equal ranges of its iterations",
            "balanced": f"ranges with equally many stored positions of {self.by}",
            "dynamic": "one chunk after the other",
        }[self.policy]
        if self.policy == "dynamic" and self.by:
            share += f", each with equally many stored positions of {self.by}"
        nest = f" in the nest of {self.nest}" if self.nest else ""
        hubs = f"; all share the sums of a row of more than {self.hubs:,}" if self.hubs else ""
        return f"threads take {share}{nest}{hubs}"

    def apply(self, program: Notation) -> Notation:
        """`forall i: body -> parallel forall i: body`.

        Raises:
            ScheduleError: iterations of the loop write the same entries of a shared tensor.
        """
        provenance = Provenance(program.relations)
        loops = (n for n in find(program.body, Forall) if n.index == self.index)
        for loop in (n for n in loops if not self.nest or assigns(n, self.nest)):
            private = {t.name for n in find(loop, notation.Let) for t in n.temporaries}
            for assign in find(loop, Assign):
                if assign.target.tensor in private:
                    continue
                written = {leaf for name in index_names(assign.target) for leaf in provenance.leaves(name)}
                if self.index not in written:
                    raise ScheduleError(
                        f"`parallel {self.index}`: its iterations all write {assign.target}",
                        f"a loop over an index of {assign.target.tensor}, or a temporary inside {self.index}",
                    )
        kind = notation.Parallel(self.policy, self.by, self.chunks, self.hubs)
        return with_kind(program, self.index, kind, self.nest)
