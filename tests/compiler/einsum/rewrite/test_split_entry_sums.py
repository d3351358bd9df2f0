"""Sums inside of elementary functions at stored entries become separate statements; other sums are unchanged."""

import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.rewrite.split_entry_sums import sums_apart
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.storage.format import Format

SUM = "sum(k, Q[i,h,k] * K[j,h,k])"
CSR, BLOCKS = "dense, compressed", "i/4: dense, j/4: compressed, i%4: dense, j%4: dense"


def program(text: str, form: str):
    pattern = Format(form)
    declared = {"A": Operand(pattern, "float32", index_dtypes=result_index_dtypes(pattern))}
    dense = {name: Operand(Format("dense", rank=3), "float32") for name in "QK"}
    return declare(parse(text), declared | dense)


@pytest.mark.parametrize(
    ("text", "form", "after"),
    [
        (
            f"P[h,i,j] = exp(where(stored(A[i,j]), 0.5 * {SUM}, -inf))",
            CSR,
            [
                f"w[h,i,j] = where(stored(A[i,j]), {SUM}, 0)",
                "P[h,i,j] = exp(where(stored(A[i,j]), 0.5 * w[h,i,j], -inf))",
            ],
        ),
        (f"P[h,i,j] = exp(where(stored(A[i,j]), 0.5 * {SUM}, -inf))", BLOCKS, None),
        (f"P[h,i,j] = where(stored(A[i,j]), 0.5 * {SUM}, 0)", CSR, None),
        ("P[i,j] = exp(where(stored(A[i,j]), sum(k, Q[i,0,k]), -inf))", CSR, None),
    ],
    ids=["entries", "blocks", "nothing slow", "sums of rows"],
)
def test_what_is_taken_apart(text, form, after):
    before = program(text, form)
    found = sums_apart(before)
    if after is None:
        assert found is before
    else:
        assert [str(statement) for statement in found.statements] == after
