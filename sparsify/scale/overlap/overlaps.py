"""The overlaps of a part: one graph for both halves where that saves time.

In: a captured graph and its graph over local rows. Out: `Overlaps(...).merged(...)`, the graph for both halves with its
buffers, or None with a reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor, fx

from sparsify.passes.graph.node_info import info
from sparsify.scale.cost import machine_here
from sparsify.scale.halo import HaloPlan
from sparsify.scale.overlap import exchange
from sparsify.scale.overlap.choose import Network, saving
from sparsify.scale.overlap.halves import Half, halves
from sparsify.scale.overlap.merge import EXCHANGE, is_mergeable, merged
from sparsify.scale.parts import Part
from sparsify.scale.place import ROW_BYTES, place, row_bytes
from sparsify.scale.placement import EDGES, NODES, Placement

# Captured graphs hold for this many rows and edges and more: an extent of 1 is broadcast and squeezed.
LEAST: Final = 2


@dataclass
class Overlaps:
    """The decisions of one part.

    Attributes:
        part: the part.
        plan: exchange of the part.
        number: number of that plan, as of `halo.register`.
        is_forced: whether graphs are merged, or not, whatever the cost model expects; None for the cost model.
        network: measured rates of the network; None if no process needs the cost model.
        reason: the latest decision.
    """

    part: Part
    plan: HaloPlan
    number: int
    is_forced: bool | None
    network: Network | None = None
    reason: str = ""
    _halves: tuple[Half, Half] | None = None
    _number: int = field(default=-1)

    def merged(
        self,
        captured: fx.Graph,
        placed: fx.Graph,
        inputs: Mapping[str, Placement],
        outputs: Sequence[Placement],
    ) -> tuple[fx.Graph, dict[str, Tensor]] | None:
        """The graph for both halves, and its buffers; None if the graph over all rows is as good.

        Args:
            captured: graph of `passes.capture`.
            placed: the same over local rows.
            inputs, outputs: placements of inputs by name, and of outputs.
        """
        is_refused, why = self._decide(captured, placed, inputs, outputs)
        self.reason = f"{'no overlap' if is_refused else 'overlap'}: {why}"
        if is_refused:
            self._halves = None  # as large as the edges of the part
            return None
        inner, boundary = self._divided()
        part = self.part
        graphs = [
            place(captured, inputs, self.number, len(half.columns) - len(half.rows), part.nodes, part.edges)[
                0
            ]
            for half in (inner, boundary)
        ]
        if self._number < 0:
            plan = exchange.HalvesPlan.of(self.plan, self.number, inner, boundary)
            self._number = exchange.register(plan)
        return merged(graphs, inputs, outputs, part, (inner, boundary), self._number)

    def _divided(self) -> tuple[Half, Half]:
        """The halves of the part."""
        if self._halves is None:
            self._halves = halves(self.part)
        return self._halves

    def _decide(
        self,
        captured: fx.Graph,
        placed: fx.Graph,
        inputs: Mapping[str, Placement],
        outputs: Sequence[Placement],
    ) -> tuple[bool, str]:
        """Whether the graph over all rows is kept, and the reason."""
        if self.part.parts == 1:
            return True, "one process"
        if self.is_forced is False:
            return True, "overlap=False"
        sizes = [node.meta[ROW_BYTES] for node in placed.nodes if node.target is EXCHANGE]
        if not sizes:
            return True, "no sums of rows of other parts"
        problem = is_mergeable(placed, outputs)
        if problem:
            return True, problem
        inner, boundary = self._divided()
        if any(min(len(half.rows), len(half.edges)) < LEAST for half in (inner, boundary)):
            return True, f"{len(inner.rows)} of {len(self.part.rows)} rows read own rows alone"
        if self.is_forced:
            return False, "overlap=True"
        assert self.network is not None, "measured without a forced decision"
        sent = max(len(self.plan.send_rows), len(self.part.halo))
        divided = self._divided_bytes(captured, inputs, outputs)
        expected = saving((inner, boundary), sent, sizes, divided, self.network, machine_here())
        return not expected.is_worthwhile, f"{expected}; {self.network}"

    def _divided_bytes(
        self, captured: fx.Graph, inputs: Mapping[str, Placement], outputs: Sequence[Placement]
    ) -> int:
        """Bytes of inputs that are divided, and of outputs that are joined and reordered."""
        leaves = captured.output_node().args[0]
        placed = [
            (node, inputs[str(info(node).input_name or node.target)])
            for node in captured.find_nodes(op="placeholder")
        ]
        placed += 2 * list(zip(leaves, outputs, strict=True))  # type: ignore[arg-type]
        count = {NODES: len(self.part.rows), EDGES: self.part.edge_index.shape[1]}
        return sum(
            row_bytes(node, placement.mode) * count[str(placement.space)]
            for node, placement in placed
            if placement.is_sharded and not placement.numbers
        )
