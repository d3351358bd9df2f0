"""Conversions between all formats, and twins."""

import pytest
import torch

import sparsify.compiler.arrays.sort_edges  # noqa: F401 - registers the compiled transposition
from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage import convert, validate
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from tests.storage.generate import FORMATS, MATRIX_FORMATS, Case, cases


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", sorted({case.format for case in cases()}))
@pytest.mark.parametrize("fill", [0.0, float("-inf")])
def test_round_trip(form, fill):
    for case in (c for c in cases() if c.format == form):
        stored = case.stored(fill)
        dense = case.dense(fill=fill)
        validate.pattern(stored.pattern)
        assert stored.format == case.form and stored.fill == fill, case
        assert torch.equal(stored.to_dense(), dense), case
        inside = stored.pattern.inside()
        coordinates, values = stored.coordinates(), stored.values()
        assert coordinates.shape == (len(case.shape), stored.nnz)
        if inside is not None:
            assert bool((values[~inside] == fill).all())
            coordinates, values = coordinates[:, inside], values[inside]
        assert torch.equal(dense[tuple(coordinates)].reshape(-1), values), case


@pytest.mark.sampled(8)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("content", ["random", "none", "all"])
def test_every_format_to_every_format(rank, content):
    shape = {1: (9,), 2: (7, 9), 3: (3, 4, 5), 4: (2, 3, 2, 3)}[rank]
    for source in FORMATS[rank]:
        case = Case(source, shape, content)
        stored, dense = case.stored(), case.dense()
        for target in FORMATS[rank]:
            form = Format(target, rank=rank)
            converted = stored.to(format=form)
            validate.pattern(converted.pattern)
            assert converted.format == form, (case, target)
            assert torch.equal(converted.to_dense(), dense), (case, target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", MATRIX_FORMATS)
def test_twin_moves_values(source):
    stored = Case(source, (7, 9), "random").stored()
    for target in MATRIX_FORMATS:
        twin, permutation = stored.pattern.converted(Format(target))
        assert stored.pattern.converted(Format(target))[0] is twin
        assert permutation.dtype == torch.int64 and permutation.shape == (twin.nnz,)
        here, there = stored.coordinates(), twin.coordinates()
        real = permutation >= 0
        assert torch.equal(here[:, permutation[real]], there[:, real]), target
        if stored.nnz == twin.nnz and bool(real.all()):
            back, inverse = twin.converted(stored.format)
            assert back is stored.pattern, target
            assert torch.equal(permutation[inverse], torch.arange(stored.nnz)), target


def test_explicit_fills_are_kept():
    coordinates = torch.tensor([[0, 1, 2], [1, 0, 2]])
    stored = tensor((coordinates, torch.tensor([0.0, 5.0, 0.0]), (3, 3)), "csr")
    assert stored.nnz == 3
    for form in ("csc", "coo", "dcsr"):
        assert stored.to(format=form).nnz == 3
    assert (
        stored.to(format="dense(2)").to(format="csr").nnz == 1
    )  # a dense format says nothing about what is stored


def test_hypersparse_without_dense_memory():
    n = 10**9
    coordinates = torch.tensor([[7, 999_999_999, 7, 123], [999_999_999, 5, 3, 456]])
    stored = tensor((coordinates, torch.arange(4.0), (n, n)), "dcsr")
    assert stored.pattern.pos[1].shape[0] == 4 and stored.pattern.crd[1].dtype == torch.int32
    assert stored.values().tolist() == [2.0, 0.0, 3.0, 1.0]
    for form in ("dcsc", "coo", "j/16: compressed, i: compressed, j%16: dense"):
        twin = stored.to(format=form)
        back = twin.to(format="dcsr")
        kept = back.values() != 0
        assert int(kept.sum()) == 3
        assert torch.equal(back.coordinates()[:, kept], stored.coordinates()[:, stored.values() != 0])


def test_keys_that_overflow_are_sorted_in_parts():
    n = 2**40
    columns = list(torch.tensor([[n - 1, 5, 5, 5], [0, n - 1, n - 1, 3], [1, 2, 1, 9]]))
    assert len(convert.linear_keys(columns, (n, n, n))) == 3
    sorting = convert.order(columns, (n, n, n))
    assert sorting.tolist() == [3, 2, 1, 0]
    pattern, places = convert.from_sorted([c[sorting] for c in columns], (n, n, n), Format("csf"))
    assert places is None and pattern.crd[0].tolist() == [5, n - 1]
    assert pattern.crd[0].dtype == torch.int64
    validate.pattern(pattern)
    twin, permutation = pattern.converted(Format("k: coordinate, j: coordinate, i: coordinate"))
    validate.pattern(twin)
    assert torch.equal(twin.coordinates(), pattern.coordinates()[:, permutation])
    with pytest.raises(InvalidTensorError, match="more entries than torch can count"):
        tensor((torch.zeros(3, 0), torch.zeros(0), (n, n, n)), "csf")


def test_dtypes_of_a_format_are_made():
    stored = tensor(torch.eye(5), "dense, compressed(pos=int64, crd=int16)")
    assert stored.pattern.pos[1].dtype == torch.int64 and stored.pattern.crd[1].dtype == torch.int16
    assert tensor(torch.eye(5)).pattern.crd[1].dtype == torch.int32


def test_refused():
    stored = tensor(torch.eye(3))
    with pytest.raises(FormatError, match="stores 3 modes"):
        stored.pattern.converted(Format("csf"))
    with pytest.raises(FormatError, match="positions"):
        tensor((torch.zeros(2, 0), torch.zeros(0), (10**9, 10**9)), "dense(2)")


def test_conversion_is_differentiable():
    coordinates = torch.tensor([[0, 2, 1, 2], [1, 0, 3, 3]])
    values = torch.rand(4, dtype=torch.float64, requires_grad=True)
    for form in MATRIX_FORMATS:
        assert torch.autograd.gradcheck(
            lambda v, form=form: tensor((coordinates, v, (3, 4)), "csc").to(format=form).to_dense(), values
        )


@pytest.mark.parametrize("source", ["csr", "csc"])
@pytest.mark.parametrize(
    "target", ["j/4: dense, i: dense, j%4: compressed", "i/5: dense, j: dense, i%5: compressed"]
)
@pytest.mark.parametrize("shape", [(7, 9), (40, 3), (1, 12), (20, 30)])
def test_panels_by_counting_equal_sorted_ones(source, target, shape):
    form = Format(target)
    stored = Case(source, shape, "random").stored()
    counted = convert._panelled(stored.pattern, form)
    assert counted is not None and convert.panel_mode(form) == form.levels[0].expression.mode
    validate.pattern(counted.pattern)
    sorted_ = convert.placed(list(stored.coordinates()), None, shape, form)
    assert torch.equal(counted.permutation, sorted_.permutation)
    assert counted.pattern.equals(sorted_.pattern)
    assert [a.dtype for a in counted.pattern.arrays()] == [a.dtype for a in sorted_.pattern.arrays()]


def test_formats_that_are_no_panels():
    for text in ("csr", "bcsr(4, 4)", "i: dense, j/4: dense, j%4: compressed"):
        assert convert.panel_mode(Format(text)) is None, text
