"""Substitution: index variables, tensors, scalars and whole expressions."""

import pytest

from sparsify.compiler.einsum import rename
from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.einsum.text.parse import parse


def statement(text: str):
    return parse(text)[0]


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ("y[i] = A[i,j] * x[j]", {"i": "j", "j": "i"}, "y[j] = A[j,i] * x[i]"),
        ("y[i] = sum(j, A[i,j])", {"j": "k"}, "y[i] = sum(k, A[i,k])"),
        ("y[i] = x[i]", {"k": "l"}, "y[i] = x[i]"),  # unchanged
    ],
)
def test_rename_indices(before, names, after):
    assert rename.rename_indices(statement(before), names) == statement(after)


def test_rename_accesses():
    renamed = rename.rename_accesses(statement("y[i] = x[i] * z[i]"), {"x": "z", "z": "x"})
    assert renamed == statement("y[i] = z[i] * x[i]")


def test_replace_and_scalars():
    before = statement("y[i] = exp(x[i]) + exp(x[i])")
    replaced = rename.replace(before, statement("y[i] = exp(x[i])").value, Access("t", ()))
    assert replaced == statement("y[i] = t + t")
    assert (
        rename.substitute_scalars(replaced.value, {"t": before.value})
        == statement("y[i] = (exp(x[i]) + exp(x[i])) + (exp(x[i]) + exp(x[i]))").value
    )


def test_names():
    assert rename.all_indices([statement("y[i] = sum(k, A[i,j] * B[k])")]) == ("i", "k", "j")
    assert rename.fresh("w", {"w", "w1"}) == "w2" and rename.fresh("w", {"v"}) == "w"
