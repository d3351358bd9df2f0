"""Contraction paths of products with several operands: splits, and unchanged results."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch

import sparsify
from experiments.compiler import scheduling
from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.ir.node import find
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.products.contract import contract
from sparsify.compiler.plan.products.contraction_path import Part, Paths
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.compiler.schedule.cost.iterations import body_of, nest_of
from sparsify.errors import ShapeError
from sparsify.options import override
from tests.compiler.schedule.nests import program_of, random


def statements(subscripts: str, *operands: torch.Tensor) -> list[str]:
    """Statements of an einsum after its products were split."""
    return [str(s) for s in contract(*program_of(subscripts, *operands)).program.statements]


def dense(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def test_dense_factors_are_multiplied_by_a_library_first() -> None:
    a, x, w = random((2000, 2000), 0.002, "csr"), dense(2000, 300), dense(300, 16)
    program, sizes = program_of("ij,jf,fk->ik", a, x, w)
    with override(vector_bytes=0):  # a generated product would be slower than the library's
        first, second = steps(program, sizes)
    assert isinstance(first, DenseProduct) and str(first) == "T = torch.mm(B, C)"
    assert str(second.program.statements[0]) == "Y[i,k] = sum(j, A[i,j] * T[j,k])"


@pytest.mark.parametrize("text", ["sum(f, X[j,f] * W[k,f]) + b[k]", "b[k] + sum(f, X[f,j] * W[f,k])"])
def test_a_dense_product_takes_its_bias_along(text: str) -> None:
    x, w, b = dense(5, 7), dense(3, 7), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    expected = x @ w.t() + b
    if "X[f,j]" in text:
        x, w = x.t(), w.t()
    kernel = evaluate_kernel(f"T[j,k] = {text}", None, X=x, W=w, b=b)
    (step,) = kernel.steps
    assert isinstance(step, DenseProduct)
    assert "torch.addmm(b, X" in str(step)
    given = {"X": x, "W": w, "b": b}
    torch.testing.assert_close(kernel(*(given[name] for name in kernel.program.inputs)), expected)
    given["b"] = b[:1]
    with pytest.raises(ShapeError, match="3 columns of T"):
        kernel(*(given[name] for name in kernel.program.inputs))


@pytest.mark.parametrize("format", ["csr", "bcsr(2,2)", "ell"])
def test_blocks_and_groups_count_as_what_loops_read(format: str) -> None:
    """A chain of products is split pair by pair, independent of the format of the matrices."""
    parts = [random((1000, 1000), 0.02, "csr", seed).to(format=format) for seed in range(4)]
    found = statements("ab,bc,cd,de->ae", *parts)
    assert found[-1].startswith("Y[a,e] = sum(") and len(found) > 1
    assert all(text.count("*") == 1 for text in found)


@pytest.mark.parametrize(
    "formats",
    [
        ("csr", "dcsr", "coo", "csc", "dia"),
        ("bcsr(2,3)", "coo", "dcsc", "ell", "csc"),
        ("csc", "bcsr(2,3)", "csc", "dia", "bcsr(2,3)"),
    ],
)
def test_chains_of_any_formats(formats: tuple[str, ...]) -> None:
    """Small chains are one loop nest, with sums over the levels of all matrices."""
    shapes = ((3, 4), (4, 5), (5, 3), (3, 4), (4, 2))
    parts = [random(shape, 0.6, "csr", n) for n, shape in enumerate(shapes)]
    made = [part.to(format=format) for part, format in zip(parts, formats, strict=True)]
    found = sparsify.einsum("ab,bc,cd,de,ef->af", *made)
    expected = torch.linalg.multi_dot([part.to_dense() for part in parts])
    torch.testing.assert_close(found.to_dense(), expected)


def test_what_is_no_bias_is_added_by_a_kernel() -> None:
    x, w, b = dense(5, 7), dense(5, 7), dense(5)
    kernel = evaluate_kernel("T[j,k] = sum(f, X[j,f] * W[k,f]) + b[j]", None, X=x, W=w, b=b)
    assert not any(isinstance(step, DenseProduct) and step.bias for step in kernel.steps)


def test_a_chain_times_a_vector_runs_from_the_right() -> None:
    a, b, c = (random((1000, 1000), 0.01, "csr", seed) for seed in range(3))
    assert statements("ij,jk,kl,l->i", a, b, c, dense(1000)) == [
        "T[k] = sum(l, C[k,l] * D[l])",
        "R[k] = or(l, stored(C[k,l]))",
        "T1[j] = sum(k, where(R[k], B[j,k] * T[k], 0))",
        "R1[j] = or(k, where(stored(B[j,k]), R[k], False))",
        "Y[i] = sum(j, where(R1[j], A[i,j] * T1[j], 0))",
    ]


def test_a_vector_on_the_left_runs_from_the_left() -> None:
    a, b, c = (random((1000, 1000), 0.01, "csr", seed) for seed in range(3))
    first, *_ = statements("i,ij,jk,kl->l", dense(1000), a, b, c)
    assert first == "T[j] = sum(i, A[i] * B[i,j])"


@pytest.mark.parametrize(
    "subscripts, operands",
    [
        ("ij,ik,jk->ij", (random((500, 500), 0.01, "csr"), dense(500, 64), dense(500, 64))),  # sampled
        ("ijk,jr,kr->ir", (random((100, 100, 100), 0.001, "csf"), dense(100, 32), dense(100, 32))),
        ("ij,jk,ik->", (random((300, 300), 0.02, "csr"),) * 3),  # triangles
        ("ij,jk->ik", (random((300, 300), 0.02, "csr"), dense(300, 8))),
    ],
    ids=["sampled", "mttkrp", "triangles", "two"],
)
def test_what_is_cheaper_whole_stays_whole(subscripts: str, operands: tuple[torch.Tensor, ...]) -> None:
    assert len(statements(subscripts, *operands)) == 1


def test_a_tucker_product_never_runs_over_all_combinations() -> None:
    factors = [dense(100, 32) for _ in range(3)]
    found = statements("ijk,ia,jb,kc->abc", random((100, 100, 100), 0.01, "csf"), *factors)
    assert len(found) == 3


def test_the_mask_is_in_the_last_product() -> None:
    mask, *rest = (random((1000, 1000), 0.01, "csr", n) for n in range(4))
    found = statements("il,ij,jk,kl->il", mask, *rest)
    assert len(found) == 2 and "A[i,l]" in found[1]


def test_unstored_entries_meet_nothing_in_temporaries_either() -> None:
    # Row 1 of B is empty: what A has in column 1 must not reach the result, as in the one sum.
    a = torch.ones(4, 3, dtype=torch.float64)
    a[:, 1] = torch.nan
    b = sparsify.tensor((torch.tensor([[0, 2], [0, 1]]), torch.ones(2, dtype=torch.float64), (3, 2)), "csr")
    c = dense(2, 2000)
    whole = sparsify.einsum("ij,jk,kl->il", a, b, c)
    assert torch.isfinite(whole).all()
    torch.testing.assert_close(whole, a[:, [0, 2]] @ c)


def test_sums_around_a_product_that_was_split_read_its_temporaries() -> None:
    c, d, e, f = random((90, 90), 0.05, "csr"), random((90, 30), 0.05, "csr"), dense(90), dense(20)
    found = sparsify.evaluate("Y[i,l] = sum(m, sum(j, C[l,j] * D[l,m] * E[l]) * F[i])", C=c, D=d, E=e, F=f)
    torch.testing.assert_close(found, torch.einsum("lj,lm,l,i->il", c.to_dense(), d.to_dense(), e, f))


def test_what_has_the_pattern_of_another_tensor_is_as_sparse_as_that() -> None:
    a, x, c = random((1000, 1000), 0.01, "csr"), dense(1000), dense(1000, 500)
    program, sizes = program_of("ij,j,ik->k", a, x, c)
    (declared, *others) = program.declarations
    following = replace(declared, pattern_of="P")
    program = replace(program, declarations=(replace(declared, name="P"), following, *others))
    first, last = contract(program, sizes).program.statements
    assert (str(first), str(last)) == ("T[i] = sum(j, A[i,j] * B[j])", "Y[k] = sum(i, T[i] * C[i,k])")
    (temporary,) = (d for d in contract(program, sizes).program.declarations if d.name == "T")
    assert not temporary.format.is_dense


CASES = {
    "chain": ("ij,jk,kl,lm->im", [(40, 30), (30, 50), (50, 20), (20, 60)]),
    "tucker": ("ijk,ia,jb,kc->abc", [(20, 25, 30), (20, 4), (25, 5), (30, 6)]),
    "mttkrp": ("ijk,jr,kr->ir", [(20, 25, 30), (25, 7), (30, 7)]),
    "order five": ("ijklm,jr,kr,lr,mr->ir", [(6, 7, 8, 9, 5), (7, 4), (8, 4), (9, 4), (5, 4)]),
    "masked": ("ij,ik,kj->ij", [(40, 50), (40, 30), (30, 50)]),
    "masked chain": ("il,ij,jk,kl->il", [(40, 20), (40, 30), (30, 50), (50, 20)]),
    "cycle": ("ij,jk,kl,li->", [(20, 30), (30, 40), (40, 50), (50, 20)]),
    "bilinear": ("i,ij,jk,k->", [(30,), (30, 40), (40, 50), (50,)]),
    "many": ("ab,bc,cd,de,ef,fg,gh,hi->ai", [(9, 9)] * 8),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kinds", ["sparse", "first sparse", "last dense"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_one_sum(name: str, kinds: str) -> None:
    subscripts, shapes = CASES[name]
    operands: list[torch.Tensor] = []
    for number, shape in enumerate(shapes):
        is_sparse = {"sparse": True, "first sparse": number == 0, "last dense": number < len(shapes) - 1}
        format = {1: "compressed", 2: "csr", 3: "csf"}.get(len(shape), ", ".join(["compressed"] * len(shape)))
        operands.append(random(shape, 0.2, format, number) if is_sparse[kinds] else dense(*shape))
    found = sparsify.einsum(subscripts, *operands)
    full = [o.to_dense() if isinstance(o, sparsify.SparseTensor) else o for o in operands]
    wanted = torch.einsum(subscripts, *full)
    torch.testing.assert_close(
        found.to_dense()
        if found.layout != torch.strided or isinstance(found, sparsify.SparseTensor)
        else found,
        wanted,
    )


def test_gradients_of_a_split_product() -> None:
    a, b = random((12, 10), 0.3, "csr").requires_grad_(), random((10, 9), 0.3, "csr", 1)
    c = dense(9, 400).requires_grad_()
    sparsify.einsum("ij,jk,kl->il", a, b, c).square().sum().backward()
    full = [t.detach().to_dense().requires_grad_() for t in (a, c)]
    torch.einsum("ij,jk,kl->il", full[0], b.to_dense(), full[1]).square().sum().backward()
    assert full[0].grad is not None and c.grad is not None and a.grad is not None
    torch.testing.assert_close(c.grad, full[1].grad)
    at = tuple(a.coordinates())
    torch.testing.assert_close(a.grad.values(), full[0].grad[at])


@pytest.mark.parametrize("seed", [5, 7, 8, 22, 28, 39])
def test_no_path_of_all_is_cheaper(seed: int) -> None:
    """Drawn einsums of three and four operands: every tree of products, costed without a limit."""
    drawn = scheduling.draw(seed)
    (statement,) = drawn.program.statements
    monoid, body = body_of(statement) or (None, statement.value)
    made = nest_of(drawn.program, statement.target, body, drawn.sizes, monoid)
    assert made is not None
    accesses = find(body, Access)
    every = Paths(made, accesses)
    assert Paths(made, accesses).best().cost <= min(trees(every, tuple(every.leaves))) * 1.01


def trees(paths: Paths, parts: tuple[Part, ...]) -> Iterator[float]:
    """Costs of all contraction trees of the parts: pairwise, with the last parts in one product."""
    yield paths.finish(parts).cost
    if len(parts) > 2:
        for pair in combinations(parts, 2):
            made = paths.join(pair) if pair[0].mask & pair[1].mask else None
            if made is not None:
                yield from trees(paths, (*(part for part in parts if part not in pair), made))


def powers(count: int, size: int = 400) -> tuple[str, list[torch.Tensor]]:
    """A matrix so many times and a narrow dense one, some rows of the matrix empty."""
    letters = "ijklm"[: count + 1]
    text = ",".join([a + b for a, b in pairwise(letters)] + [letters[-1] + "c"]) + "->ic"
    entries = random((size, size), 0.02, "csr").to_dense()
    entries[::7] = 0
    return text, [sparsify.tensor(entries, "csr")] * count + [dense(size, 16)]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_powers_of_a_sparse_matrix_have_dense_temporaries(count: int) -> None:
    text, operands = powers(count)
    program, sizes = program_of(text, *operands)
    split = contract(program, sizes).program
    temporaries = [d for d in split.declarations if d.name.startswith("T")]
    assert len(temporaries) == count - 1 and all(d.format.is_dense for d in temporaries)
    wanted = operands[-1]
    for matrix in operands[:-1]:
        wanted = matrix.to_dense() @ wanted
    torch.testing.assert_close(sparsify.einsum(text, *operands), wanted)


def test_what_says_which_rows_are_reached() -> None:
    text, operands = powers(3)
    found = statements(text, *operands)
    assert found == [
        "T[k,c] = sum(l, C[k,l] * D[l,c])",
        "R[k] = or(l, stored(C[k,l]))",
        "T1[j,c] = sum(k, where(R[k], B[j,k] * T[k,c], 0))",
        "R1[j] = or(k, where(stored(B[j,k]), R[k], False))",
        "Y[i,c] = sum(j, where(R1[j], A[i,j] * T1[j,c], 0))",
    ]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_entries_that_are_no_numbers_meet_no_empty_rows(bad: float) -> None:
    text, (matrix, _, x) = powers(2)
    entries = matrix.to_dense()
    entries[3, 7] = bad  # row 7 is empty
    a = sparsify.tensor(entries, "csr")
    assert len(statements(text, a, a, x)) == 3
    found = sparsify.einsum(text, a, a, x)
    assert torch.isfinite(found[[0, 1, 2, 4, 5]]).all() and torch.isfinite(found[3]).all()
    torch.testing.assert_close(found[3], matrix.to_dense()[3] @ (matrix.to_dense() @ x))


def test_temporaries_with_few_rows_stay_sparse() -> None:
    a, b, x = random((400, 400), 0.02, "csr"), random((400, 400), 0.0005, "csr"), dense(400, 16)
    program, sizes = program_of("ij,jk,kc->ic", a, b, x)
    made = [d for d in contract(program, sizes).program.declarations if d.name == "T"]
    assert all(not d.format.is_dense for d in made)
    torch.testing.assert_close(sparsify.einsum("ij,jk,kc->ic", a, b, x), a.to_dense() @ (b.to_dense() @ x))


def test_gradients_through_powers() -> None:
    text, (matrix, _, x) = powers(2, 40)
    x = x[:, :3].clone().requires_grad_()
    values = matrix.values().clone().requires_grad_()

    def call(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a = sparsify.SparseTensor(matrix.pattern, values)
        return sparsify.einsum(text, a, a, x)

    assert torch.autograd.gradcheck(call, (values, x))
