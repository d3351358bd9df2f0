"""Sparsifiers: exact counts, ties by index, draws by coordinates, any format, gradients, inside kernels and errors."""

import pickle

import pytest
import scipy.sparse
import torch

import sparsify
from sparsify import options, recipe, sparsifiers
from sparsify.compiler.einsum.counter_random import uniform
from sparsify.errors import (
    FormatError,
    InvalidTensorError,
    ParseError,
    RecipeError,
    ScheduleError,
    ShapeError,
    SparsifierError,
)
from sparsify.runtime.peak import Peak

FORMATS = ("csr", "csc", "coo", "dcsr", "bcsr(2, 4)", "dia", "dense")


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(shape, seed):
    """The numbers that entries of a matrix are drawn by."""
    rows, columns = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None]
    return torch.from_numpy(uniform(seed, rows.numpy(), columns.numpy()))


class Positive(sparsifiers.Sparsifier):
    """A user's own sparsifier."""

    def mask(self, tensor):
        return tensor > 0


T = random(12, 16)
ORDER = T.abs().flatten().argsort(descending=True)
CASES = [
    (sparsifiers.KeepAll(), torch.ones(12, 16, dtype=torch.bool)),
    (sparsifiers.RandomFraction(0.3, seed=5), drawn((12, 16), 5) >= 0.3),
    (sparsifiers.ScalarThreshold(0.7), T.abs() >= 0.7),
    (sparsifiers.ScalarThreshold(0.2, signed=True), T >= 0.2),
    (sparsifiers.Where("value * value > least", least=0.5), T.square() > 0.5),
    (sparsifiers.ScalarFraction(0.75), T.abs() >= T.abs().flatten()[ORDER[47]]),
    (sparsifiers.TopK(3), T.abs() >= T.abs().sort(1, descending=True).values[:, 2:3]),
    (sparsifiers.TopK(3, dim=0, by="value"), T.sort(0, descending=True).values[2:3] <= T),
    (sparsifiers.TopK(3, dim=None), T.abs() >= T.abs().flatten()[ORDER[2]]),
    (Positive(), T > 0),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sparsifier", "mask"), CASES, ids=lambda case: str(case)[:30])
def test_what_stays(sparsifier, mask):
    """In each format the same entries, and the values of the dense tensor."""
    assert torch.equal(sparsifier.mask(T), mask)
    want = torch.where(mask, T, 0)
    for format in FORMATS:
        found = sparsify.sparsify(T, sparsifier, format)
        assert found.format == sparsify.Format(format, rank=2)
        assert torch.equal(found.to_dense(), want)
        assert {a.dtype for a in (*found.pattern.pos, *found.pattern.crd) if a is not None} <= {torch.int32}
        if format in FORMATS[:4]:
            assert found.nnz == int(mask.sum())


@pytest.mark.parametrize(("sparsifier", "mask"), CASES, ids=lambda case: str(case)[:30])
def test_of_sparse_tensors(sparsifier, mask):
    """Entries that are not stored do not come back; the others are judged as in a dense tensor."""
    held = drawn((12, 16), 9) < 0.5
    A = sparsify.tensor(torch.where(held, T, 0), "csc")
    found = sparsifier(A)
    assert found.format == A.format
    assert set(map(tuple, found.coordinates().T.tolist())) <= set(map(tuple, A.coordinates().T.tolist()))
    if isinstance(sparsifier, sparsifiers.Streaming | Positive):
        assert torch.equal(found.to_dense(), torch.where(held & mask, T, 0))
    elif isinstance(sparsifier, sparsifiers.ScalarFraction):
        assert torch.equal(found.to_dense(), sparsifier(A.to_dense()).to_dense())


@pytest.mark.parametrize("by_kernel", [1, 1 << 20])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_counts_are_exact_and_the_first_of_equals_stay(fraction, dtype, by_kernel, monkeypatch):
    for room in ("sparsifier", "blocking"):
        monkeypatch.setattr(f"sparsify.sparsification.rules.{room}.BY_KERNEL", by_kernel)
    tensor = (random(33, 40) * 2).to(dtype)  # many equal magnitudes
    found = sparsify.sparsify(tensor, sparsifiers.ScalarFraction(fraction), "csr")
    assert found.nnz == round(33 * 40 * (1 - fraction))
    order = tensor.abs().flatten().double().argsort(dim=0, descending=True, stable=True)
    at = found.coordinates()
    assert sorted((at[0] * 40 + at[1]).tolist()) == sorted(order[: found.nnz].tolist())
    rows = sparsifiers.TopK(7).mask(tensor)
    first = tensor.abs().double().argsort(dim=1, descending=True, stable=True)[:, :7]
    assert torch.equal(rows, torch.zeros(33, 40, dtype=torch.bool).scatter(1, first, True))
    groups = sparsifiers.PerBlockFraction(3, 20).mask(tensor)
    small = sparsifiers.PerBlockFraction(3, 8).mask(tensor)
    for mask, size in ((groups, 20), (small, 8)):
        first = tensor.abs().double().view(-1, size).argsort(dim=1, descending=True, stable=True)[:, :3]
        want = torch.zeros(33 * 40 // size, size, dtype=torch.bool).scatter(1, first, True)
        assert torch.equal(mask, want.view(33, 40))


def test_groups_keep_at_least_one():
    with pytest.raises(SparsifierError, match=r"PerBlockFraction: n=0; a whole number, 1 or more"):
        sparsifiers.PerBlockFraction(0, 4)
    rule = {"targets": "param:w", "prune": {"method": "magnitude", "pattern": "0:4"}}
    with pytest.raises(RecipeError, match=r"keeps none of every 4.*`1:4` at least"):
        recipe.load({"name": "x", "sparsify": [rule]})


def test_groups_are_stored_as_such():
    found = sparsify.sparsify(T, sparsifiers.PerBlockFraction(2, 4), "nm(2, 4)")
    assert found.nnz == T.numel() // 2 and found.format == sparsify.Format("nm(2, 4)")
    assert torch.equal(found.to_dense() != 0, sparsifiers.PerBlockFraction(2, 4).mask(T))
    sorted_ = sparsify.sparsify(T, sparsifiers.PerBlockFraction(2, 4), "csr").to(format="nm(2, 4)")
    assert found.pattern.equals(sorted_.pattern) and torch.equal(found.values(), sorted_.values())
    found.pattern.validated()
    torch.testing.assert_close(found @ T.T, found.to_dense() @ T.T)
    zeros = sparsify.sparsify(torch.zeros(4, 8), sparsifiers.PerBlockFraction(1, 4), "nm(1, 4)")
    assert zeros.nnz == 8  # explicit zeros keep the pattern
    shared = sparsifiers.PerBlockFraction(1, 4, group=2).mask(T)
    blocks = shared.view(3, 4, 2, 8).permute(0, 2, 3, 1).flatten(0, 1)
    for chunk in blocks:
        assert chunk.unique(dim=0, return_counts=True)[1].tolist() == [2] * 4
    turned = sparsifiers.PerBlockFraction(1, 4, group=2, dim=1).mask(T.T.contiguous())
    assert torch.equal(turned, shared.T)


def test_groups_with_patterns_are_stored_without_padding():
    """n:m:g along the outputs: the values of each block and their places; `nm(group=)` is for masks that rows share."""
    own = sparsifiers.PerBlockFraction(2, 4, group=2)
    weight = random(16, 24, seed=4)
    mask = own.mask(weight)
    found = own(weight, "i/4: dense, j: dense, i%4: grouped(2)")
    assert found.nnz == int(mask.sum()) == 16 * 24 // 2
    torch.testing.assert_close(found.to_dense(), torch.where(mask, weight, 0))
    places = found.pattern.crd[2].view(4, 24, 2)
    assert torch.equal(places, mask.view(4, 4, 24).permute(0, 2, 1).nonzero()[:, 2].view(4, 24, 2))
    with pytest.raises(InvalidTensorError, match="which holds 2"):
        own(weight, "nm(2, 4, group=2)")


def test_blocks_live_and_die_together():
    found = sparsify.sparsify(T, sparsifiers.BlockFraction(0.75, (3, 4)), "bcsr(3, 4)")
    sums = T.abs().view(4, 3, 4, 4).sum((1, 3))
    kept = sums >= sums.flatten().sort(descending=True).values[3]
    assert found.nnz == 4 * 12
    want = kept.repeat_interleave(3, 0).repeat_interleave(4, 1)
    assert torch.equal(found.to_dense(), torch.where(want, T, 0))
    cube = random(4, 6, 8)
    assert sparsifiers.BlockFraction(0.5, (2, 3, 4)).mask(cube).sum() == 4 * 24


@pytest.mark.sampled(2)
def test_operands_may_have_any_name():
    """Operands of conditions are neither index variables nor tensors of the kernel."""
    for name in ("a", "b", "i", "T", "M", "Y", "seed"):
        own = sparsifiers.Where(f"value > {name}", **{name: 0.5})
        want = torch.where(T > 0.5, T, 0)
        assert torch.equal(own.mask(T), T > 0.5)
        assert torch.equal(sparsify.sparsify(T, own, "csr").to_dense(), want)
        found = sparsify.evaluate("Y[i,b] = T[i,b]", T=T, format="csr", sparsifier=own)
        assert torch.equal(found.to_dense(), want)
    places = sparsifiers.Where("row < column")
    assert torch.equal(places.mask(T), torch.ones(12, 16).triu(1).bool())
    assert torch.equal(sparsify.sparsify(T, places, "csr").to_dense(), T.triu(1))
    assert sparsify.sparsify(T, sparsifiers.Where("True"), "csr").nnz == T.numel()


def test_entries_that_equal_another_fill():
    A = sparsify.tensor(torch.where(T > 0, T, -torch.inf), "csr", fill=-torch.inf)
    found = sparsify.sparsify(A, sparsifiers.ScalarThreshold(1.0, signed=True))
    assert found.fill == 0 and torch.equal(found.to_dense(), torch.where(T >= 1, T, 0))


def test_the_pattern_of_a_reference():
    reference = sparsify.tensor(torch.where(T > 0.5, T, 0), "csc")
    for tensor in (T, sparsify.tensor(T, "csr"), sparsify.tensor(torch.where(T > 0, T, 0), "csr")):
        found = sparsify.sparsify(tensor, sparsifiers.SameFormat(reference))
        assert found.pattern is reference.pattern
        assert torch.equal(found.to_dense(), reference.to_dense())
    assert sparsify.sparsify(T, sparsifiers.SameFormat(reference), "csr").format == sparsify.Format("csr")


def test_movement_keeps_what_grows():
    weight = random(6, 8, seed=1).requires_grad_()
    step = random(6, 8, seed=2)
    (weight * step).sum().backward()
    found = sparsify.sparsify(weight, sparsifiers.Movement(0.75), "csr")
    scores = -(weight * step).detach()
    want = scores >= scores.flatten().sort(descending=True).values[11]
    assert torch.equal(found.to_dense() != 0, want)
    summed = sparsifiers.Movement(0.75, scores * 3)
    assert torch.equal(summed.mask(weight), want)
    sparse = sparsify.tensor(torch.where(want, weight.detach(), 0), "csc")
    assert torch.equal(summed(sparse).to_dense(), sparse.to_dense())


@pytest.mark.parametrize("shape", [(), (7,), (4, 5, 6), (2, 3, 4, 5), (0, 5)])
def test_shapes(shape):
    tensor = random(*shape) + 3
    for own in (sparsifiers.KeepAll(), sparsifiers.ScalarThreshold(3.0), sparsifiers.ScalarFraction(0.5)):
        mask = own.mask(tensor)
        format = "coo" if shape else "scalar"
        if not shape and not bool(mask):
            continue
        found = sparsify.sparsify(tensor, own, format)
        assert torch.equal(found.to_dense(), torch.where(mask, tensor, 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(40, 50), (500,), (6, 20, 30), (3, 4, 20, 30)])
def test_draws_depend_on_coordinates_alone(shape):
    ones = torch.ones(shape)
    own = sparsifiers.RandomFraction(0.4, seed=11)
    whole = sparsify.sparsify(ones, own, "coo").to_dense()
    assert abs(float(whole.mean()) - 0.6) < 0.08
    assert not torch.equal(
        whole, sparsify.sparsify(ones, sparsifiers.RandomFraction(0.4, seed=12), "coo").to_dense()
    )
    for settings in ({"threads": 1}, {"threads": 2, "serial_threshold": 0}, {"vector_bytes": 0}):
        with options.override(**settings):
            assert torch.equal(
                sparsify.sparsify(ones, own, "csf" if len(shape) > 2 else "coo").to_dense(), whole
            )
    first = tuple(extent // 2 for extent in shape)
    part = ones[tuple(slice(at, None) for at in first)]
    shard = sparsify.sparsify(part, sparsifiers.RandomFraction(0.4, seed=11, origin=first), "coo").to_dense()
    assert torch.equal(shard, whole[tuple(slice(at, None) for at in first)])
    assert torch.equal(own.mask(ones), whole == 1)


def test_what_is_not_a_number_stays():
    tensor = torch.tensor([[1.0, torch.nan, 0.1, torch.inf]])
    for own in (sparsifiers.ScalarThreshold(0.5), sparsifiers.ScalarFraction(0.25), sparsifiers.TopK(3)):
        assert own.mask(tensor).tolist() == [[True, True, False, True]]
        assert sparsify.sparsify(tensor, own, "csr").nnz == 3


@pytest.mark.parametrize(
    "own",
    [
        sparsifiers.ScalarThreshold(0.5),
        sparsifiers.RandomFraction(0.5),
        sparsifiers.ScalarFraction(0.5),
        sparsifiers.PerBlockFraction(2, 4),
        sparsifiers.TopK(2),
    ],
    ids=str,
)
@pytest.mark.parametrize("by_kernel", [1, 1 << 20])
def test_gradients_reach_what_stays(own, by_kernel, monkeypatch):
    for room in ("sparsifier", "blocking"):
        monkeypatch.setattr(f"sparsify.sparsification.rules.{room}.BY_KERNEL", by_kernel)
    tensor, factor = random(8, 12, dtype=torch.float64).requires_grad_(), random(8, 12, seed=3).double()
    found = sparsify.sparsify(tensor, own, "csr")
    (found.to_dense() * factor).sum().backward()
    assert torch.equal(tensor.grad, torch.where(own.mask(tensor), factor, 0))


PRODUCT = "Y[i,k] = relu(sum(j, X[i,j] * W[k,j]))"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.parametrize("own", [case[0] for case in CASES[:5]], ids=str)
def test_inside_the_kernel(own, format):
    """Streaming: one kernel computes and drops; the result and its gradients are those of a masked dense product."""
    X, W = (random(*shape, seed=1).double().requires_grad_() for shape in ((30, 5), (40, 5)))
    R = random(30, 40, seed=2).double()
    found = sparsify.evaluate(PRODUCT, X=X, W=W, format=format, sparsifier=own)
    dense = (X @ W.T).relu()
    kept = own.mask(dense.detach())
    want = torch.where(kept, dense, 0)
    torch.testing.assert_close(found.to_dense(), want)
    assert found.nnz == int((want != 0).sum())
    have = torch.autograd.grad((found.to_dense() * R).sum(), (X, W))
    torch.testing.assert_close(have, torch.autograd.grad((want * R).sum(), (X, W)))
    text = sparsify.explain(PRODUCT, X=X, W=W, format=format, sparsifier=own)
    assert "after the kernel" not in text


def test_the_loops_store_what_stays_alone():
    text = sparsify.explain(
        "Y[i,k] = relu(T[i,k])", T=T, format="csr", sparsifier=sparsifiers.ScalarThreshold(0.5)
    )
    assert "entries of row_Y[0 ..k_extent] that are not 0" in text
    rows = sparsify.explain("Y[i,k] = relu(T[i,k])", T=T, format="csr", sparsifier=sparsifiers.TopK(2))
    assert "largest 2 entries of row_Y[0 ..k_extent]" in rows and "after the kernel" not in rows
    moved = sparsify.explain(
        "Y[i,k] = relu(T[i,k])", T=T, format="csr", sparsifier=sparsifiers.TopK(2, dim=0)
    )
    assert moved.endswith("after the kernel\n  conversion to dense, compressed")
    own = sparsifiers.ScalarFraction(0.5)
    later = sparsify.explain("Y[i,k] = relu(T[i,k])", T=T, format="csr", sparsifier=own)
    assert later.endswith("the result: ScalarFraction(fraction=0.5), then csr")


@pytest.mark.parametrize(
    "own", [case[0] for case in CASES[5:]] + [sparsifiers.PerBlockFraction(1, 4, group=2)], ids=str
)
def test_behind_the_kernel(own):
    X, W = random(12, 5, seed=1), random(16, 5, seed=2)
    found = sparsify.evaluate(PRODUCT, X=X, W=W, format="csr", sparsifier=own)
    dense = sparsify.evaluate(PRODUCT, X=X, W=W)  # by another kernel, which may round in another order
    torch.testing.assert_close(found.to_dense(), torch.where(own.mask(dense), dense, 0))


BLOCKS = [
    sparsifiers.PerBlockFraction(2, 4),
    sparsifiers.PerBlockFraction(9, 36),
    sparsifiers.PerBlockFraction(1, 4, dim=0),
    sparsifiers.PerBlockFraction(7, 40, dim=-2),
    sparsifiers.TopK(3),
    sparsifiers.TopK(3, dim=0, by="value"),
    sparsifiers.TopK(0),
    sparsifiers.TopK(50),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "own, format, dtype",
    [
        (
            own,
            ("csr", "csc", "coo", None)[n % 4],
            (torch.float32, torch.bfloat16, torch.float64, torch.float16)[n % 4],
        )
        for n, own in enumerate(BLOCKS)
    ],
)
@pytest.mark.parametrize("settings", [{}, {"vector_bytes": 0}, {"compiler": "/nonexistent/c++"}], ids=str)
@pytest.mark.filterwarnings("ignore:.*torch's operators compute:RuntimeWarning")
def test_blocks_inside_the_kernel(own, format, dtype, settings):
    """n:m and top-k: exact counts, kept zeros are stored; ties, infinite and undefined entries too."""
    T = random(40, 36, seed=3).to(dtype)
    T[2, 3], T[3], T[4], T[5, 1], T[5, 2] = torch.nan, 1, 0, torch.inf, -torch.inf
    T[6, ::2] = -0.0
    with options.override(threads=2, serial_threshold=0, compiler_flags=("-O0",), **settings):
        found = sparsify.evaluate("Y[i,k] = T[i,k] * 2", T=T, format=format, sparsifier=own)
    mask = own.mask(T * 2)
    torch.testing.assert_close(found.to_dense(), torch.where(mask, T * 2, 0), equal_nan=True)
    rows, columns = found.coordinates()
    assert torch.equal(torch.zeros_like(mask).index_put((rows, columns), torch.tensor(True)), mask)
    assert found.nnz == int(mask.sum()) and found.format == sparsify.Format(format or "csr", rank=2)
    sparsify.Pattern(found.format, tuple(found.shape), found.pattern.pos, found.pattern.crd).validated()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own", [sparsifiers.TopK(3), sparsifiers.PerBlockFraction(2, 4)], ids=str)
def test_blocks_of_half_precision_that_are_copied(own, dtype):
    """Small ones by a statement, large ones by `store`: rows are read as they are, and compared as they are."""
    for shape in ((4, 8), (160, 128)):
        T = random(*shape, seed=4).to(dtype)
        copied = sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format="csr", sparsifier=own)
        for found in (own(T, "csr"), copied):
            assert found.nnz == int(own.mask(T).sum())
            assert torch.equal(found.to_dense(), torch.where(own.mask(T), T, 0))


def test_blocks_of_results_that_no_kernel_compares():
    """Truth values and complex numbers of operands of other dtypes: the sparsifier follows the kernel."""
    own, T = sparsifiers.TopK(2), random(6, 8, seed=5)
    for text in ("Y[i,k] = T[i,k] > 0", "Y[i,k] = logical_not(T[i,k])"):
        found = sparsify.evaluate(text, T=T, format="csr", sparsifier=own)
        dense = T > 0 if ">" in text else T == 0
        assert torch.equal(found.to_dense(), dense & own.mask(dense))
    found = sparsify.evaluate("Y[i,k] = T[i,k] * c", T=T, c=2j, format="csr", sparsifier=own)
    torch.testing.assert_close(found.to_dense(), torch.where(own.mask(T * 2j), T * 2j, 0))


@pytest.mark.parametrize(
    "text, format, message",
    [
        ("Y[i,k] = T[i,k] > 0", "csr largest 2", r"`largest 2` of Y, which is bool; one of float32"),
        ("Y[i,k] = T[i,k]", "largest 2", "a format in front of it"),
    ],
)
def test_formats_that_no_kernel_compares(text, format, message):
    with pytest.raises(FormatError, match=message):
        sparsify.evaluate(text, T=random(3, 4), format=format)


@pytest.mark.parametrize("own", [sparsifiers.TopK(3), sparsifiers.RandomFraction(0.5)], ids=str)
def test_truth_values_stay_truth_values(own):
    for rows in (4, 200):
        T = random(rows, 128) > 0
        found = own(T, "csr")
        assert found.dtype == torch.bool and torch.equal(found.to_dense(), T & own.mask(T))


def test_more_entries_than_numbers_of_64_bits_count():
    T = random(3, 40)
    for format in (f"csr largest {2**64 + 1}", f"csr largest {2**64 + 1} of {2**64 + 2}"):
        assert sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format=format).nnz == 120


def test_blocks_of_other_results():
    """Three modes, whole numbers, reductions, rows that are counted first, sums with sparse operands."""
    cube = random(4, 6, 8).mul(5).long()
    for own in (sparsifiers.TopK(2), sparsifiers.PerBlockFraction(1, 3, dim=1), sparsifiers.TopK(1, dim=0)):
        found = sparsify.evaluate("Y[a,b,c] = T[a,b,c] + 1", T=cube, sparsifier=own)
        assert torch.equal(found.to_dense(), torch.where(own.mask(cube + 1), cube + 1, 0))
        assert found.nnz == int(own.mask(cube).sum())
    X, W = random(12, 5, seed=1), random(16, 5, seed=2)
    own = sparsifiers.TopK(4)
    found = sparsify.evaluate("Y[i,k] += X[i,j] * W[k,j]", X=X, W=W, format="csr", sparsifier=own)
    torch.testing.assert_close(found.to_dense(), torch.where(own.mask(X @ W.T), X @ W.T, 0))
    A = sparsify.tensor(torch.where(X > 0, X, 0), "csr")
    text = "Y[i,k] = sum(j, A[i,j] * W[k,j]) + b[k]"
    dense = A.to_dense() @ W.T + W[:, 0]
    found = sparsify.evaluate(text, A=A, W=W, b=W[:, 0].contiguous(), format="csr", sparsifier=own)
    torch.testing.assert_close(found.to_dense(), torch.where(own.mask(dense), dense, 0))
    stored = sparsify.evaluate("Y[i,k] = A[i,k] * 2", A=A, format="csr", sparsifier=sparsifiers.TopK(2))
    assert stored.nnz == int((A.to_dense() != 0).sum(1).clamp(max=2).sum())  # entries that are stored alone
    line = sparsify.evaluate("y[i] = t[i]", t=X[0].contiguous(), sparsifier=sparsifiers.TopK(2))
    assert line.nnz == 2


def test_rows_that_are_counted_first(monkeypatch):
    monkeypatch.setattr("sparsify.compiler.loops.lower.assemble.dropped.MOST_ROOM", 8)
    for own in (sparsifiers.TopK(3), sparsifiers.PerBlockFraction(1, 3)):
        found = sparsify.evaluate("Y[n,k] = T[n,k] * 3", T=random(7, 33), format="csr", sparsifier=own)
        mask = own.mask(random(7, 33))
        torch.testing.assert_close(found.to_dense(), torch.where(mask, random(7, 33) * 3, 0))


def test_formats_that_name_a_selection():
    found = sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format="csr largest 2 of 4")
    assert torch.equal(found.to_dense(), torch.where(sparsifiers.PerBlockFraction(2, 4).mask(T), T, 0))
    signed = sparsify.einsum("ij->ij", T, format="csc largest signed 3")
    assert torch.equal(signed.to_dense(), torch.where(sparsifiers.TopK(3, dim=0, by="value").mask(T), T, 0))
    A = sparsify.tensor(torch.where(T > 0, T, 0), "csr")
    mistakes = [
        ("coo largest 2", "rows: dense levels and a compressed one"),
        ("dense largest 2", "rows: dense levels and a compressed one"),
        ("csr largest 5 of 4", "n of every m stay, n at most m"),
        ("csr largest 0 of 0", "n of every m stay, n at most m"),
    ]
    for format, message in mistakes:
        with pytest.raises(FormatError, match=message):
            sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format=format)
    with pytest.raises(FormatError, match="entries that are not stored"):
        sparsify.evaluate("Y[i,k] = A[i,k]", A=A, format="csr largest 2")
    with pytest.raises(FormatError, match="one condition"):
        sparsify.evaluate(
            "Y[i,k] = T[i,k]", T=T, format="csr largest 2", sparsifier=sparsifiers.ScalarThreshold(1.0)
        )
    with pytest.raises(ScheduleError, match="a row at once"):
        sparsify.evaluate("Y[i,k] = T[i,k] * 2", T=T, format="csr largest 2", schedule="order i, k")


def test_memory_beside_results():
    """Rows are stored in place: nothing of the size of a mask or of wide coordinates lives beside the result."""
    tensor = random(512, 512)
    whole = tensor.nbytes
    for own, most in ((sparsifiers.KeepAll(), 2.1), (sparsifiers.TopK(64), 2.3), (BLOCKS[0], 2.1)):
        with Peak() as peak:
            found = sparsify.sparsify(tensor, own, "csr")
        assert found.pattern.crd[1].dtype == torch.int32
        assert peak.bytes <= most * whole, (own, peak.bytes / whole)


def test_gradients_of_blocks_inside_the_kernel():
    own = sparsifiers.PerBlockFraction(1, 4)
    X, W = (random(*shape, seed=1).double().requires_grad_() for shape in ((30, 5), (40, 5)))
    R = random(30, 40, seed=2).double()
    found = sparsify.evaluate(PRODUCT, X=X, W=W, format="csr", sparsifier=own)
    dense = (X @ W.T).relu()
    want = torch.where(own.mask(dense.detach()), dense, 0)
    torch.testing.assert_close(found.to_dense(), want)
    have = torch.autograd.grad((found.to_dense() * R).sum(), (X, W))
    torch.testing.assert_close(have, torch.autograd.grad((want * R).sum(), (X, W)))
    assert "after the kernel" not in sparsify.explain(PRODUCT, X=X, W=W, format="csr", sparsifier=own)
    with pytest.raises(ShapeError, match="groups of 4 do not divide the last mode of Y, 5 entries"):
        sparsify.evaluate("Y[i,k] = T[i,k]", T=torch.ones(2, 5), format="csr", sparsifier=own)


def test_sparsifiers_by_result():
    text = "A[i,k] = T[i,k] * 2\nB[i,k] = A[i,k] + 1\nC[i] += A[i,k]"
    wanted = {
        "A": sparsifiers.ScalarThreshold(1.0),
        "B": sparsifiers.TopK(2),
        "C": sparsifiers.ScalarThreshold(2.0),
    }
    A, B, C = sparsify.evaluate(
        text, ["A", "B", "C"], T=T, format={"A": "csr", "B": "coo"}, sparsifier=wanted
    )
    kept = torch.where((2 * T).abs() >= 1, 2 * T, 0)
    torch.testing.assert_close(A.to_dense(), kept)
    torch.testing.assert_close(B.to_dense(), torch.where(wanted["B"].mask(kept + 1), kept + 1, 0))
    torch.testing.assert_close(
        torch.as_tensor(C.to_dense()), torch.where(kept.sum(1).abs() >= 2, kept.sum(1), 0)
    )
    named = sparsify.evaluate(text, "A", T=T, format="csr", sparsifier=sparsifiers.ScalarThreshold(1.0))
    torch.testing.assert_close(named.to_dense(), kept)


def test_results_that_later_statements_read():
    text = "A[i,k] = T[i,k] * 2\nC[i] += A[i,k]"
    own = {"A": sparsifiers.TopK(1)}
    for outputs in (["A", "C"], None):
        with pytest.raises(SparsifierError, match="which later statements read"):
            sparsify.evaluate(text, outputs, T=T, sparsifier=own)
    A = sparsify.evaluate(text, "A", T=T, sparsifier=own)
    torch.testing.assert_close(A.to_dense(), torch.where(own["A"].mask(2 * T), 2 * T, 0))
    apart = "A[i,k] = T[i,k] * 2\nC[i] += T[i,k]"
    A, C = sparsify.evaluate(apart, T=T, sparsifier=own)
    torch.testing.assert_close(A.to_dense(), torch.where(own["A"].mask(2 * T), 2 * T, 0))
    torch.testing.assert_close(C, T.sum(1))


def test_scores_of_dtypes():
    """The least whole number is the largest by magnitude, truth values have an order, complex numbers none."""
    least = torch.tensor([[-128, 1, 2, -127]], dtype=torch.int8)
    assert sparsifiers.ScalarFraction(0.75).mask(least).tolist() == [[True, False, False, False]]
    truths = torch.tensor([[False, True]])
    assert sparsifiers.TopK(1, by="value").mask(truths).tolist() == [[False, True]]
    assert sparsify.sparsify(truths, sparsifiers.TopK(1), torch.Tensor).dtype == torch.bool
    with pytest.raises(SparsifierError, match="has no order"):
        sparsifiers.TopK(1, by="value").mask(torch.tensor([[1 + 1j, 2]]))


@pytest.mark.parametrize(
    "convert", [torch.Tensor.to_sparse_csr, lambda t: scipy.sparse.csr_array(t.numpy()), torch.Tensor.numpy]
)
@pytest.mark.parametrize("format", [torch.Tensor, "csc", None])
def test_tensors_of_other_libraries(convert, format):
    found = sparsify.sparsify(convert(T), sparsifiers.ScalarThreshold(0.5), format)
    torch.testing.assert_close(torch.as_tensor(found.to_dense()), torch.where(T.abs() >= 0.5, T, 0))


def test_conditions_of_formats():
    found = sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format="csr where abs(Y) >= t", t=0.5)
    assert torch.equal(found.to_dense(), torch.where(T.abs() >= 0.5, T, 0))
    below = sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format="coo where k <= i")
    assert torch.equal(below.to_dense(), T.tril())
    total = sparsify.evaluate("y[i] += T[i,k]", T=T, format="coo where y > 0")
    torch.testing.assert_close(total.to_dense(), T.sum(1).relu())
    inferred = sparsify.evaluate(
        "y[i] += T[i,k]", T=T, sparsifier=sparsifiers.ScalarThreshold(0.0, signed=True)
    )
    torch.testing.assert_close(inferred, T.sum(1).relu())
    A = sparsify.tensor(torch.where(T > 0, T, 0), "csr")
    both = sparsify.evaluate(
        "Y[i,k] = A[i,k] + B[i,k]", A=A, B=A, format="csr", sparsifier=sparsifiers.KeepAll()
    )
    assert both.nnz == A.nnz


@pytest.mark.filterwarnings("ignore:.*torch's operators compute:RuntimeWarning")
@pytest.mark.parametrize(("own", "mask"), CASES[:5], ids=lambda case: str(case)[:30])
def test_without_a_compiler(own, mask):
    with options.override(compiler="/nonexistent/c++"):
        assert torch.equal(sparsify.sparsify(T, own, "csr").to_dense(), torch.where(mask, T, 0))


def test_all_say_what_they_cost():
    kinds = {"streaming": (1, "O(1)"), "blocking": (2, "O(b)")}
    for own, _ in [
        *CASES,
        (sparsifiers.PerBlockFraction(2, 4), None),
        (sparsifiers.BlockFraction(0.5), None),
    ]:
        if own.kind in kinds:
            assert (own.passes, own.memory) == kinds[own.kind]
        else:
            assert own.kind == "materializing" and own.passes >= 1
        assert (own.condition() is not None) == (own.kind == "streaming")
    equal = pickle.loads(pickle.dumps(sparsifiers.RandomFraction(0.5, seed=2)))
    assert equal == sparsifiers.RandomFraction(0.5, seed=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sparsifiers.ScalarFraction(1.5), r"ScalarFraction\(1.5\); the share of zeros, from 0 to 1"),
        (lambda: sparsifiers.RandomFraction("much"), "the share of zeros"),
        (lambda: sparsifiers.RandomFraction(0.5, seed=1.5), "an integer of 64 bits"),
        (lambda: sparsifiers.ScalarThreshold(float("nan")), "a number in the unit"),
        (lambda: sparsifiers.PerBlockFraction(5, 4), "n at most m"),
        (lambda: sparsifiers.PerBlockFraction(2, 4, dim=2, group=4), "n:m:g is for matrices"),
        (lambda: sparsifiers.TopK(-1), "a whole number, 0 or more"),
        (lambda: sparsifiers.TopK(1, by="size"), "'magnitude' or 'value'"),
        (lambda: sparsifiers.BlockFraction(0.5, (0, 4)), "the entries along each mode"),
        (lambda: sparsifiers.SameFormat(T), "a SparseTensor, whose entries stay"),
        (lambda: sparsifiers.Where("  "), "a condition as text"),
        (lambda: sparsifiers.Where("value > a"), "the name a"),
        (lambda: sparsifiers.Where("value > t", t=T), "a number, or a tensor without modes"),
        (lambda: sparsify.sparsify(T, 0.9), "an object of sparsify.sparsifiers"),
        (lambda: sparsify.sparsify(T, sparsifiers.Movement(0.5)), "call it after backward"),
        (lambda: sparsify.evaluate("y[i] = T[i,j]", T=T, sparsifier=sparsifiers.TopK), "an object of"),
        (
            lambda: sparsify.evaluate(
                "a[i] = T[i,j]\nb[i] = a[i]", ["a", "b"], T=T, sparsifier=sparsifiers.TopK(1)
            ),
            "name them, sparsifier=",
        ),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(SparsifierError, match=message):
        make()


class Wrong(sparsifiers.Sparsifier):
    """A mask of another shape."""

    def mask(self, tensor):
        return tensor[0]


def test_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"groups of 5 do not divide a weight \[12, 16\]"):
        sparsify.sparsify(T, sparsifiers.PerBlockFraction(2, 5))
    with pytest.raises(ShapeError, match="blocks of 5 x 4 do not divide"):
        sparsify.sparsify(T, sparsifiers.BlockFraction(0.5, (5, 4)))
    with pytest.raises(ShapeError, match=r"for a tensor \[12, 16\]; one of the shape \[3, 3\]"):
        sparsify.sparsify(T, sparsifiers.SameFormat(sparsify.tensor(torch.eye(3), "csr")))
    with pytest.raises(ShapeError, match="a mode that it has"):
        sparsify.sparsify(T, sparsifiers.TopK(1, dim=5))
    with pytest.raises(InvalidTensorError, match="prune them first"):
        sparsify.sparsify(T, sparsifiers.ScalarFraction(0.1), "nm(1, 4)")
    with pytest.raises(FormatError, match="leave out the sparsifier"):
        sparsify.evaluate(
            "Y[i,k] = T[i,k]", T=T, format="csr where Y > 0", sparsifier=sparsifiers.ScalarThreshold(1)
        )
    with pytest.raises(ParseError):
        sparsify.sparsify(T, sparsifiers.Where("value >"), "csr")
    with pytest.raises(SparsifierError, match="truth values of the shape"):
        sparsify.sparsify(T, Wrong())
