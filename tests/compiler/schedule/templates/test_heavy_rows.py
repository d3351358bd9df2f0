"""Heavy rows shared by threads: choice by length, and its explanation."""

import re

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.schedule.size_class import PatternClasses
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.compiler.schedule.templates.heavy_rows import hub_entries

NODES = 20_000
SPMM = "Y[i,k] = A[i,j] * X[j,k]"


def matrix(hub: int, format: str = "csr", each: int = 1) -> sparsify.SparseTensor:
    """`each` entries a row, and up to `hub` more in row 7."""
    nodes = torch.arange(NODES)
    rows = torch.cat([nodes.repeat(each), torch.full((hub,), 7)])
    columns = torch.cat([nodes.flip(0).roll(31 * n) for n in range(each)] + [torch.arange(hub)])
    ones = torch.ones(len(rows))
    return sparsify.tensor(
        torch.sparse_coo_tensor(torch.stack([rows, columns]), ones, (NODES, NODES)).coalesce(), format
    )


def schedule_of(A: sparsify.SparseTensor, columns: int) -> str:
    (step,) = evaluate_kernel(SPMM, A=A, X=torch.empty(NODES, columns)).generated
    step.prepare(sizes_of(step.program, (A, torch.empty(NODES, columns))))
    return str(step.stages.schedule)


def test_rows_longer_than_a_share_are_split() -> None:
    star, even = matrix(17_000), matrix(6_000)
    assert "parallel i dynamic A hubs 8192" in schedule_of(star, 128)
    assert "hubs" not in schedule_of(even, 128)
    assert "hubs" not in schedule_of(star, 1)  # too little to do
    assert "hubs 8192" in schedule_of(star, 128)  # the shapes were met before


@pytest.mark.parametrize(
    ("longest", "stored", "columns", "entries"),
    [
        (500_000, 1_000_000, 128, 8_192),
        (500_000, 1_000_000, 32, 32_768),
        (500_000, 1_000_000, 1, 131_072),
        (100_000, 1_000_000, 1, 0),
        (10_000, 1_000_000, 128, 0),
        (500_000, 100_000_000, 128, 0),
        (None, 1_000_000, 128, 0),
    ],
)
def test_limits(longest: int | None, stored: int, columns: int, entries: int) -> None:
    (step,) = evaluate_kernel(SPMM, A=matrix(0), X=torch.empty(NODES, columns)).generated
    rows = {} if longest is None else {"A": longest}
    assert hub_entries(step.program, "A", Sizes({"k": columns}, {"A": stored}, rows=rows)) == entries


def test_columns_of_several_results_are_not_multiplied() -> None:
    text = "Y[i,k] = A[i,j] * X[j,k]\nZ[i,l] = A[i,j] * W[j,l]"
    given = {"A": matrix(0), "X": torch.empty(NODES, 16), "W": torch.empty(NODES, 8)}
    program = evaluate_kernel(text, ["Y", "Z"], **given).program
    sizes = Sizes({"k": 16, "l": 8}, {"A": 1 << 20}, rows={"A": 1 << 18})
    assert hub_entries(program, "A", sizes) == 65_536


@pytest.mark.parametrize("stored", [1 << 20, (1 << 21) - 1])
@pytest.mark.parametrize(
    ("longest", "entries"), [((1 << 14) - 1, 0), (1 << 15, 16_384), ((1 << 16) - 1, 16_384)]
)
def test_powers_of_two_decide(stored: int, longest: int, entries: int) -> None:
    """Limits are powers of two, because each limit has its own kernel."""
    (step,) = evaluate_kernel(SPMM, A=matrix(0), X=torch.empty(NODES, 128)).generated
    assert hub_entries(step.program, "A", Sizes({"k": 128}, {"A": stored}, rows={"A": longest})) == entries


@pytest.mark.parametrize("hubs", [(8_191, 10_000), (17_000, 19_000)])
def test_results_do_not_depend_on_earlier_calls(hubs: tuple[int, int]) -> None:
    """Matrices of one pattern class share a kernel, chosen for the first of them."""
    drawn = torch.Generator().manual_seed(0)
    X = torch.randn(NODES, 128, generator=drawn)
    matrices = [matrix(hub) for hub in hubs]
    classes = PatternClasses()
    assert classes.of(matrices[0].pattern) is classes.of(matrices[1].pattern)
    found: list[dict[int, torch.Tensor]] = []
    for places, text in (((0, 1), SPMM), ((1, 0), SPMM.replace("Y", f"Y{hubs[0]}"))):
        with options.override(threads=2):
            found.append({place: sparsify.evaluate(text, A=matrices[place], X=X) for place in places})
    for place in (0, 1):
        torch.testing.assert_close(found[0][place], found[1][place], rtol=0, atol=0)


def test_columns_that_are_read_as_rows() -> None:
    """The gradient of X iterates over the columns of A, one of which is long."""
    stored = matrix(17_000)
    A = sparsify.tensor((stored.coordinates().flip(0), torch.ones(NODES + 17_000), (NODES, NODES)), "csr")
    assert (A.pattern.longest(0), A.pattern.longest(1)) == (2, 17_001)
    X = torch.ones(NODES, 128, requires_grad=True)
    kernel = evaluate_kernel(SPMM, A=A, X=X)
    kernel(A, X).sum().backward()
    assert X.grad is not None and X.grad[7].eq(17_001).all()
    (step,) = kernel.adjoint(("X",)).generated
    assert "hubs 8192" in str(step.stages.schedule)


@pytest.mark.parametrize("format", ["csr", "csc"])
def test_matrices_that_differ_in_long_rows_alone(format: str) -> None:
    """Two matrices of equal shape and number of entries: the second comes when the kernel of the first is memoized."""
    X = torch.ones(NODES, 128)
    more = torch.arange(17_000)
    stored = matrix(17_000).coordinates()
    alike = (
        torch.cat([torch.arange(NODES), more]),
        torch.cat([torch.arange(NODES).flip(0), (more * 7) % NODES]),
    )
    matrices = [
        sparsify.tensor((at, torch.ones(NODES + 17_000), (NODES, NODES)), format)
        for at in (torch.stack(alike), stored)
    ]
    kernel = evaluate_kernel(SPMM.replace("Y", f"Y_{format}"), A=matrices[0], X=X)
    (step,) = kernel.generated
    assert bool(step.step.twins) == (format == "csc")
    hubs = []
    for A in matrices:
        assert torch.equal(
            kernel(A, X)[:, 0], torch.zeros(NODES).index_add_(0, A.coordinates()[0], A.values())
        )
        hubs.append("hubs 8192" in str(step.stages.schedule))
    assert hubs == [False, True]


def test_only_matrices_are_turned() -> None:
    """Only matrices are transposed: vectors have one mode ordering, and tensors of more modes are not supported."""
    cube = torch.ones(3, 4, 5)
    for text, dense, read, stored in (
        ("y[i] = A[i,j]", cube[0], "csr", "csc"),
        ("s = A[i]", cube[0, 0], "compressed", "bitmap"),
        ("y[i] = A[i,j,k]", cube, "csf", "k: compressed, j: compressed, i: compressed"),
    ):
        program = evaluate_kernel(text, A=sparsify.tensor(dense, read)).program
        other = sparsify.tensor(dense, stored)
        assert list(sizes_of(program, (other,)).turned) == (["A"] if dense.dim() == 2 else [])
        twins = sizes_of(program, (sparsify.tensor(dense, read),)).also({"B": "A"})
        assert twins.stored["B"] == dense.numel()
        assert list(twins.turned) == (["B"] if dense.dim() == 2 else [])


def test_the_reason_is_said() -> None:
    star = matrix(17_000)
    text = str(sparsify.explain(SPMM, A=star, X=torch.empty(NODES, 128)))
    assert (
        "A: the longest row has 17,001 of 37,000 entries; all threads share each row of more than 8,192"
        in text
    )


def test_strips_are_not_shared_and_the_explanation_says_so() -> None:
    """Softmax rows stay with one thread, because each entry depends on all others of its row."""
    text = """S[i,j] = A[i,j] * f[j]
        m[i] max= where(stored(A[i,j]), S[i,j], -inf)
        P[i,j] = exp(S[i,j] - m[i]) * stored(A[i,j])
        d[i] = P[i,j]
        Y[i,k] = sum(j, P[i,j] * X[j,k]) / d[i]"""
    given = {"f": torch.ones(NODES), "X": torch.empty(NODES, 128)}
    said = re.compile(
        r"parallel i dynamic A hubs 8192\n\s+refused: .*nothing that its rows compute is a sum over"
    )
    assert said.search(sparsify.explain(text, A=matrix(17_000, each=12), **given))
    assert "hubs" not in sparsify.explain(text, A=matrix(0, each=12), **given)


@pytest.mark.parametrize("text", ["E[i,k] = A[i,j] * X[j,k]", "ij,jk->ik"])
def test_explanations_are_of_the_operands_that_are_given(text: str) -> None:
    """Other operands of the same shapes were explained before: the plan is equal, the kernel is not."""
    X = torch.empty(NODES, 128)
    for hub in (0, 17_000, 6_000, 19_000):
        given = (matrix(hub), X) if "=" not in text else ()
        named = {"A": matrix(hub), "X": X} if "=" in text else {}
        found = sparsify.explain(text, *given, **named)
        assert ("dynamic A hubs 8192" in found) == (hub > 6_000)
        assert (f"the longest row has {hub + 1:,}" in found) == (hub > 6_000)
