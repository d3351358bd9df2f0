"""The graph for both halves computes the inner half between the steps of an exchange."""

from pathlib import Path

import pytest
import torch
from torch import fx

from sparsify.passes.capture import calls
from sparsify.scale import halo, parts
from sparsify.scale.capture_rows import EDGE_INDEX, EDGE_ROWS, ROWS, captured_rows
from sparsify.scale.halo import HaloPlan
from sparsify.scale.overlap import exchange
from sparsify.scale.overlap.halves import halves
from sparsify.scale.overlap.overlaps import Overlaps
from sparsify.scale.partition import partition
from sparsify.scale.place import place

from ..graph_models import Normalised, model, write_graph

OPERATORS = torch.ops.sparsify


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> parts.Part:
    """A part of two."""
    folder = tmp_path_factory.mktemp("graph")
    write_graph(folder / "graph.pt")
    partition(folder / "graph.pt", 2, "stream", folder / "parts")
    return parts.read(Path(folder / "parts"), 0)


def overlap(
    net: torch.nn.Module, part: parts.Part, is_forced: bool = True
) -> tuple[Overlaps, fx.Graph | None]:
    """The decision for a model, and the merged graph."""
    given = {"x": (part.node_data["x"], ROWS), "edge_index": (part.edge_index, EDGE_INDEX)}
    if not isinstance(net, Normalised):
        given["edge_weight"] = (part.edge_data["edge_weight"], EDGE_ROWS)
    tensors = [tensor for tensor, _ in given.values()]
    call = calls.flatten(calls.signature(net), tuple(tensors), {})
    inputs = {name: placement for name, (_, placement) in given.items()}
    captured = captured_rows(net, call, list(given), tensors, inputs, part.nodes, part.edges)
    plan = HaloPlan.of(part)
    number = halo.register(plan)
    graph, outputs = place(captured.graph, inputs, number, plan.halo, part.nodes, part.edges)
    found = Overlaps(part, plan, number, is_forced)
    merged = found.merged(captured.graph, graph, inputs, outputs)
    return found, None if merged is None else merged[0]


def test_the_inner_half_is_between_begin_and_end(part: parts.Part) -> None:
    found, graph = overlap(model("hand", torch.float64), part)
    assert graph is not None and found.reason == "overlap: overlap=True"
    graph.lint()
    targets = [node.target for node in graph.nodes]
    begin = targets.index(OPERATORS.exchange_begin.default)
    end = targets.index(OPERATORS.exchange_halo.default)
    sums = [at for at, target in enumerate(targets) if target is torch.ops.aten.index_add.default]
    assert len(sums) == 4 and begin < sums[0] < sums[1] < end < sums[2]
    assert OPERATORS.halo_exchange.default not in targets and OPERATORS.halo_reduce.default not in targets
    assert targets.count(OPERATORS.halves_reduce.default) == 1
    assert targets.count(OPERATORS.all_reduce_sum.default) == 2  # a mean and a sum over all nodes, once each


def test_refusals_have_reasons(part: parts.Part) -> None:
    assert (
        overlap(Normalised().double(), part)[0].reason == "no overlap: maxima over the rows of all processes"
    )
    assert (
        overlap(model("hand", torch.float64), part, is_forced=False)[0].reason == "no overlap: overlap=False"
    )


def test_halves_of_one_row_are_refused(tmp_path: Path) -> None:
    """Captured graphs hold for two rows and more: operators squeeze and broadcast the mode of a single row."""
    number = torch.arange(9)
    edges = torch.stack([torch.cat([number, number + 1]), torch.cat([number + 1, number])])
    data = {"edge_index": edges, "x": torch.rand(10, 8).double(), "edge_weight": torch.rand(18).double()}
    torch.save(data, tmp_path / "graph.pt")
    partition(tmp_path / "graph.pt", 2, "range", tmp_path / "parts")
    found, graph = overlap(model("hand", torch.float64), parts.read(tmp_path / "parts", 0))
    assert graph is None and found.reason == "no overlap: 4 of 5 rows read own rows alone"
    assert found._halves is None  # as large as the edges of the part


def test_operators_and_their_adjoints(part: parts.Part) -> None:
    plan = HaloPlan.of(part)
    inner, boundary = halves(part)
    number = exchange.register(exchange.HalvesPlan.of(plan, halo.register(plan), inner, boundary))
    first, second = (
        torch.rand(len(half.rows), 3, dtype=torch.float64, requires_grad=True) for half in (inner, boundary)
    )
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    with halo.rehearsing() as exchanges:
        ticket = exchange.exchange_begin(first, second, number)
        rows = exchange.exchange_halo(ticket, second, number)
        assert rows.shape == (plan.halo, 3)
        gradients = torch.autograd.grad(rows.square().sum(), (first, second), create_graph=True)
        sum(gradient.square().sum() for gradient in gradients).backward()
        exchanged, reduced = (
            [f"{end}{name} of torch.float64 [3]" for end in ("", "the end of ")]
            for name in ("halo_exchange", "halo_reduce")
        )
        # A value, its gradient, and the gradients of both; the latter have no gradients.
        first_pass = [note for line in (*exchanged, *reduced) for note in (line, "its gradient")]
        assert exchanges == [*first_pass, *exchanged, *reduced]
        torch.library.opcheck(exchange.exchange_begin, (first, second, number), test_utils=checks)
        torch.library.opcheck(exchange.exchange_halo, (ticket.detach(), second, number), test_utils=checks)
        wide = torch.rand(len(inner.columns), 3, requires_grad=True), torch.rand(len(boundary.columns), 3)
        torch.library.opcheck(exchange.halves_reduce, (*wide, number), test_utils=checks)
