"""A level of one's own: the example of the documentation is stored, validated and computed with."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import sparsify
from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage.level import known_levels
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.fixture(autouse=True)
def strided(monkeypatch):
    """The level of the documentation, known during a test."""
    monkeypatch.setattr(known_levels, "LEVELS", dict(known_levels.LEVELS))
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    names: dict[str, object] = {}
    exec(next(block for block in blocks if "class Strided" in block), names)
    return names["Strided"]


def every(step, shape=(5, 8), fill=0.0):
    """A matrix with entries in every `step`-th column."""
    dense = torch.full(shape, fill, dtype=torch.float64)
    dense[:, ::step] = torch.arange(dense[:, ::step].numel()).reshape(shape[0], -1) + 1.0
    return dense


def test_text_reads_back(strided):
    form = sparsify.Format("dense, strided(3)")
    assert form.levels[1].level == strided(3)
    assert str(form) == "dense, strided(3)" and form.letters == "d0t1"
    assert sparsify.Format(str(form)) == form


@pytest.mark.parametrize("fill", [0.0, 1.0, float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "form", ["dense, strided(3)", "strided(3), compressed", "i: compressed, j/6: dense, j%6: strided(3)"]
)
def test_conversions(form, fill):
    dense = every(3, fill=fill)
    if form.startswith("strided"):
        dense = torch.full((7, 4), fill, dtype=torch.float64)
        dense[::3, 1:3] = 2
    A = sparsify.tensor(dense, form, fill=fill)
    assert torch.equal(A.to_dense(), dense)
    assert torch.equal(A.to(format="csr").to_dense(), dense)
    assert torch.equal(sparsify.tensor(dense, "csc", fill=fill).to(format=form).to_dense(), dense)


def test_entries_without_a_position_are_named():
    dense = every(3)
    dense[2, 4] = 1
    with pytest.raises(InvalidTensorError, match="the entry at i = 2 has no position in its level"):
        sparsify.tensor(dense, "dense, strided(3)")


def test_computed_with():
    dense, other = every(2), every(3)
    A, S = sparsify.tensor(dense, "dense, strided(2)"), sparsify.tensor(other, "csr")
    x, B = torch.rand(8, dtype=torch.float64), torch.rand(8, 3, dtype=torch.float64)
    torch.testing.assert_close(sparsify.einsum("ij,j->i", A, x), dense @ x)
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", A, B), dense @ B)
    torch.testing.assert_close(A.T @ dense, dense.T @ dense)
    both = sparsify.evaluate("C[i,j] = A[i,j] * S[i,j]", A=A, S=S)
    torch.testing.assert_close(both.to_dense(), dense * other)
    either = sparsify.evaluate("C[i,j] = A[i,j] + S[i,j]", A=A, S=S)
    torch.testing.assert_close(either.to_dense(), dense + other)
    doubled = sparsify.evaluate("C[i,j] = A[i,j] * 2", A=A)
    assert doubled.pattern is A.pattern


def test_gradients():
    A = sparsify.tensor(every(3), "dense, strided(3)")
    B = torch.rand(8, 2, dtype=torch.float64, requires_grad=True)
    values = A.values().detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, b: A.with_values(v) @ b, (values, B))


def test_rules_are_validated():
    @sparsify.register_level
    @dataclass(frozen=True, slots=True)
    class Shifted(sparsify.Level):
        name: ClassVar[str] = "shifted"
        letter: ClassVar[str] = "k"

        def begin(self, at, parent):
            return parent * 2

        def coordinate(self, at, parent, position):
            return position - parent * 2 + 3

    pattern = Pattern(sparsify.Format("dense, shifted"), (2, 4), (None, None), (None, None))
    with pytest.raises(
        InvalidTensorError, match=r"position 1 of level 1 \(j: shifted\) has the coordinate 4 by its rule"
    ):
        SparseTensor(pattern, torch.ones(4))


def test_refused():
    def made(name, letter):
        return dataclass(frozen=True)(type("Made", (sparsify.Level,), {"name": name, "letter": letter}))

    for cls, message in (
        (made("dense", "y"), "a second level called dense"),
        (made("coordinate", "y"), "a second level called coordinate"),
        (made("Wide", "y"), "a level called 'Wide'"),
        (made("wide", "s"), "the letter 's' of wide, which compressed has"),
        (made("wide", "o"), "the letter 'o' of wide, which coordinate has"),
        (int, "a frozen dataclass"),
    ):
        with pytest.raises(FormatError, match=message):
            sparsify.register_level(cls)


def test_kernels_of_other_rules_have_other_keys(strided):
    before = known_levels.registered()
    changed = dataclass(frozen=True, slots=True)(
        type(
            "Strided",
            (sparsify.Level,),
            {"name": "strided", "letter": "t", "begin": lambda self, at, p: p * 2},
        )
    )
    known_levels.LEVELS["strided"] = changed
    assert known_levels.registered() != before
