"""Loop orders by cost: textbook orders, and never an order with more iterations."""

import time
from dataclasses import replace
from itertools import permutations

import pytest
import torch

import sparsify
from experiments.compiler import scheduling
from sparsify.compiler.pipeline import chosen, compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.cost import loop_order
from sparsify.compiler.schedule.cost.iterations import Nest, body_of, nest_of, spread
from sparsify.compiler.schedule.cost.loop_order import (
    Order,
    Search,
    best_order,
    least_cost,
    may_follow,
    orders,
)
from sparsify.compiler.schedule.sizes import UNKNOWN
from tests.compiler.random_programs.generate import draw
from tests.compiler.schedule.nests import nest, program_of, random


def best(subscripts: str, *operands: torch.Tensor, format: str | None = None) -> Order:
    found = best_order(nest(subscripts, *operands, format=format))
    assert found is not None
    return found


def dense(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    "subscripts, formats, order",
    [
        ("ij,jk->ik", ("csc", "d"), "i, j, k"),
        ("ij,jk->ik", ("csr", "d"), "i, j, k"),
        ("ij,jk->ik", ("csr", "csr"), "i, j, k"),
        ("ij,ij->ij", ("csr", "csr"), "i, j"),
        ("ij,ik,jk->ij", ("csr", "d", "d"), "i, j, k"),
        ("ij,jk,ik->", ("dcsr", "dcsr", "dcsr"), "i, j, k"),
    ],
)
def test_textbook_orders(subscripts: str, formats: tuple[str, ...], order: str) -> None:
    operands = [
        dense(300, 300) if f == "d" else random((300, 300), 0.02, f, n) for n, f in enumerate(formats)
    ]
    assert str(best(subscripts, *operands)) == order


@pytest.mark.parametrize("formats", [("csr", "csc"), ("csc", "csr"), ("csc", "csc"), ("coo", "dcsc")])
def test_matrix_products_are_gustavsons_in_every_format(formats: tuple[str, str]) -> None:
    found = best("ij,jk->ik", *(random((300, 300), 0.02, f, n) for n, f in enumerate(formats)), format="csr")
    assert str(found) == "i, j, k" and found.workspace


def test_a_sparse_mask_goes_first() -> None:
    rows = [random((1000, 1000), 0.02, "csr", n) for n in range(2)]
    few, many = random((1000, 1000), 0.0005, "csr", 2), random((1000, 1000), 0.3, "csr", 3)
    assert str(best("ij,ik,kj->ij", few, *rows)) == "i, j, k"
    assert str(best("ij,ik,kj->ij", many, *rows)) == "i, k, j"


def test_huge_extents_cost_nothing_by_themselves() -> None:
    huge = [random((10**9, 10**9), 1e-15, "coo", n) for n in range(2)]
    found = best("ij,jk->ik", *huge, format="coo")
    assert found.iterations < 1e5


def test_the_best_of_all_orders_is_found() -> None:
    for subscripts, operands in (
        ("ij,ik,kj->ij", [random((60, 60), 0.05 * (n + 1), "csr", n) for n in range(3)]),
        ("ijk,jr,kr->ir", [random((30, 30, 30), 0.01, "csf"), dense(30, 8), dense(30, 8)]),
        ("ijk,jl->ilk", [random((30, 30, 30), 0.01, "csf"), random((30, 30), 0.1, "csc", 1)]),
    ):
        made = nest(subscripts, *operands)
        first = next(iter(orders(made)))
        found = best_order(made)
        assert found is not None and found.cost == pytest.approx(first.cost)


def measured(made: Nest, order: tuple[str, ...], operands: list[torch.Tensor], subscripts: str) -> int:
    """Iterations of the loops: the distinct common coordinates of the operands, loop by loop."""
    names = subscripts.split("->")[0].split(",")
    total, known = 0, torch.zeros((0, 1), dtype=torch.int64)
    for depth, name in enumerate(order):
        extent = int(made.extents[made.variables.index(name)])
        step = torch.arange(extent)
        known = torch.cat([known.repeat_interleave(extent, 1), step.repeat(known.shape[1])[None]])
        for letters, operand in zip(names, operands, strict=True):
            shared = [letter for letter in order[: depth + 1] if letter in letters]
            if not hasattr(operand, "pattern") or name not in letters:
                continue
            stored = operand.coordinates()[[letters.index(letter) for letter in shared]]
            place = torch.tensor([int(made.extents[made.variables.index(s)]) for s in shared])
            factors = torch.cat([place[1:].flip(0).cumprod(0).flip(0), torch.ones(1, dtype=torch.int64)])
            key = (known[[order.index(s) for s in shared]] * factors[:, None]).sum(0)
            known = known[:, torch.isin(key, (stored * factors[:, None]).sum(0))]
        total += known.shape[1]
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,ik,kj->ij", "ij,jk,ki->", "ij,jk,k->i", "ij,ik->jk"])
def test_no_order_with_many_more_iterations_is_taken(subscripts: str, seed: int) -> None:
    """Counts the iterations on the operands, for the chosen order and for all others."""
    seeded = torch.Generator().manual_seed(seed)
    extents = {letter: int(torch.randint(8, 25, (1,), generator=seeded)) for letter in "ijk"}
    operands = []
    for number, letters in enumerate(subscripts.split("->")[0].split(",")):
        density = (0.03, 0.1, 0.3)[int(torch.randint(3, (1,), generator=seeded))]
        format = "compressed" if len(letters) == 1 else ("dcsr", "dcsc")[seed % 2]
        operands.append(random(tuple(extents[letter] for letter in letters), density, format, seed + number))
    made = nest(subscripts, *operands)
    found = best_order(made)
    assert found is not None
    counts = {}
    for order in permutations(made.variables):
        outer, legal = 0, False
        for workspace in (1, 0, 2):
            outer, legal = 0, True
            for name in order:
                legal = legal and may_follow(made, outer, made.bit(name), workspace)
                outer |= made.bit(name)
            if legal:
                break
        if legal:
            counts[order] = measured(made, order, operands, subscripts)
    rows = sum(int(extent) for extent in made.extents)
    assert counts[found.names] <= 3 * min(counts.values()) + rows


def test_random_programs_have_an_order_that_is_the_best_by_the_model() -> None:
    """All orders of the loop nests of random programs: none is asymptotically better than the chosen order."""
    compared = 0
    for seed in range(150):
        program = draw(seed).program
        for statement in program.statements:
            body = body_of(statement)
            made = None if body is None else nest_of(program, statement.target, body[1], UNKNOWN, body[0])
            if made is None or not 2 <= len(made.variables) <= 4 or (found := best_order(made)) is None:
                continue
            assert found.cost <= min(order.cost for order in orders(made)) * (1 + 1e-6)
            compared += 1
    assert compared > 40


EIGHT = (  # subscripts of eight index variables, the first operand or two sparse
    ("abcdef,ag,bg,ch,dh->gefh", 1),
    ("abcd,ef,ag,ch->bdefgh", 1),
    ("ab,bc,cd,de,efgh->ah", 2),
    ("abgh,cde,cdf,gf->abe", 2),
)


@pytest.mark.parametrize(("subscripts", "stored"), EIGHT)
def test_eight_loops_are_scheduled_quickly(subscripts: str, stored: int) -> None:
    """Statements, orders and the first schedule of each within 20 ms of one thread (40 ms with shared caches)."""
    terms = subscripts.split("->")[0].split(",")
    operands = [
        random((6,) * len(term), 0.01, ", ".join(["compressed"] * len(term)), n)
        if n < stored
        else dense(*(6,) * len(term))
        for n, term in enumerate(terms)
    ]
    program, sizes = program_of(subscripts, *operands)
    spent = []
    for _ in range(5):
        loop_order.searched_before.cache_clear()
        began = time.thread_time()
        for step in steps(program, sizes):
            if isinstance(step, Step):
                assert chosen(step, 32, sizes).directives
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.04


def test_few_loops_are_costed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random einsums of six to eight index variables: counts loop cost evaluations, which dominate scheduling time."""
    costed = []
    cost = loop_order._loop_cost
    monkeypatch.setattr(loop_order, "_loop_cost", lambda *loop: costed.append(loop) or cost(*loop))
    counts = []
    for seed in range(24):
        costed.clear()
        assert scheduling.scheduled(scheduling.draw(seed)) > 0
        counts.append(len(costed))
    assert max(counts) < 1500 and sum(counts) < 400 * len(counts)


@pytest.mark.parametrize("seed", range(12))
def test_loops_are_ordered_below_a_limit_only(seed: int) -> None:
    """A search with a cost limit finds the same order as one without; below the best cost it finds none."""
    drawn = scheduling.draw(seed)
    (statement,) = drawn.program.statements
    monoid, body = body_of(statement) or (None, statement.value)
    made = nest_of(drawn.program, statement.target, body, drawn.sizes, monoid)
    assert made is not None
    whole = Search(made)
    assert whole.look() and whole.cost >= least_cost(made)
    fresh = replace(made)
    assert not fresh.costs
    search = Search(fresh)
    assert not search.look(whole.cost * 0.99) and search.found is None
    assert search.look(whole.cost) and (search.cost, search.found) == (whole.cost, whole.found)


def test_counts_of_a_product() -> None:
    made = nest("ij,jk->ik", *(random((1000, 1000), 0.01, "dcsr", n) for n in range(2)))
    i, j, k = (made.bit(name) for name in "ijk")
    entries = made.factors[0].stored
    assert made.count(i | j) == pytest.approx(entries, rel=0.01)
    assert made.count(i | j | k) == pytest.approx(entries * made.factors[1].stored / 1000, rel=0.01)
    assert made.visits(i | k, j)[0] == pytest.approx(20, rel=0.1)
    assert spread(10.0, 1e9) == pytest.approx(10.0) and spread(1e9, 10.0) == pytest.approx(10.0)


def test_operands_are_turned_for_the_loops_of_a_given_schedule() -> None:
    a, b = (random((30, 30), 0.2, "csr", n) for n in range(2))
    wanted = torch.einsum("ij,jk->ik", a.to_dense(), b.to_dense())
    for order in permutations("ijk"):
        found = sparsify.einsum(
            "ij,jk->ik", a, b, format="dense, dense", schedule=f"order {', '.join(order)}"
        )
        torch.testing.assert_close(found, wanted)


def test_schedules_that_explain_prints_are_read_back() -> None:
    mask, a, b = random((200, 200), 0.0005, "csr", 2), *(random((200, 200), 0.02, "csr", n) for n in range(2))
    program, sizes = program_of("ij,ik,kj->ij", mask, a, b)
    (step,) = steps(program, sizes)
    text = str(compile_stages(step, None, 32, sizes=sizes).schedule)  # type: ignore[arg-type]
    found = sparsify.einsum("ij,ik,kj->ij", mask, a, b, schedule=text)
    torch.testing.assert_close(found.to_dense(), mask.to_dense() * (a.to_dense() @ b.to_dense()))
