"""Programs with dense tensors inside rows of zeros: declarations, kernels, and errors."""

from dataclasses import replace

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.einsum.verify import verify
from sparsify.compiler.kernel.kernel import plan
from sparsify.errors import EinsumError
from sparsify.runtime.padded_memory import PADDED, Interior
from sparsify.storage.format import Format

INTERIOR = Interior(300, 14, (96, 12, 1))
SHAPE = (2, 3, 6, 10)


def program(text="Y[n,o,y,x] = relu(b[o] + Z[n,o,y,x])", inside="YZ", formats=None):
    ranks = {"b": 1, "Z": 4}
    operands = {name: Operand(dense_format(rank), "float32") for name, rank in ranks.items()}
    made = declare(parse(text), operands, ("Y",), sizes={"y": 6, "x": 10})
    placed = [replace(d, interior=INTERIOR) if d.name in inside else d for d in made.declarations]
    return replace(made, declarations=tuple(placed))


def test_the_text_and_the_file_have_the_place():
    made = program()
    assert (
        "Y[n,o,y,x]: float32 dense(n) dense(o) dense(y) dense(x); in rows of 300 from 14 by 96, 12, 1"
        in str(made)
    )
    assert serialize.read(repr(made)) == made
    verify(made)


@pytest.mark.parametrize("inside", ["", "Y", "Z", "YZ"])
def test_kernels_read_and_write_inside_rows(inside):
    kernel = plan(program(inside=inside))
    for images in (2, 1, 5):
        b, z = torch.randn(3), torch.randn(images, *SHAPE[1:])
        wanted = torch.relu(b[:, None, None] + z)
        given = [z, PADDED.placed_inside(z, INTERIOR), z.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)]
        for operand in given * 2:
            found = kernel(b, operand)
            assert torch.equal(found, wanted)
            rows = PADDED.rows_of(found, INTERIOR)
            assert (rows is not None) == ("Y" in inside)
            if rows is not None:
                assert rows.count_nonzero() == wanted.count_nonzero()


def test_results_in_use_keep_their_memory():
    kernel, b = plan(program()), torch.zeros(3)
    operands = [torch.full(SHAPE, float(number)) for number in range(5)]
    found = [kernel(b, PADDED.placed_inside(operand, INTERIOR)) for operand in operands]
    assert all(torch.equal(result, operand) for result, operand in zip(found, operands, strict=True))


def test_places_of_other_tensors_are_errors():
    dense = next(d for d in program().declarations if d.name == "Z")
    for wrong in (
        replace(dense, format=Format("dense, dense, dense, compressed")),
        replace(dense, format=Format("dense", rank=4, ordering=(0, 2, 1, 3))),
        replace(dense, interior=Interior(300, 14, (12, 1))),
    ):
        made = replace(program(), declarations=(*[d for d in program().declarations if d.name != "Z"], wrong))
        with pytest.raises(EinsumError, match="with a stride for each mode but the first"):
            verify(made)


@pytest.mark.parametrize("is_dirty", [False, True], ids=["zeros", "earlier results"])
def test_results_with_initial_values_keep_the_zeros(is_dirty):
    csr, interior = (
        Operand(Format("csr"), "float32", 0.0, (("", ""), ("int64", "int64"))),
        Interior(31, 3, (2,)),
    )
    made = declare(parse("Y[o,x] = 2 * W[o,x]"), {"W": csr}, ("Y",), formats={"Y": dense_format(2)})
    placed = [replace(d, interior=interior) if d.name == "Y" else d for d in made.declarations]
    kernel = plan(replace(made, declarations=tuple(placed)))
    if is_dirty:
        PADDED.empty((6, 10), torch.float32, interior).fill_(7)
    for _ in range(3):
        found = kernel(sparsify.tensor(torch.eye(6, 10), "csr"))
        assert torch.equal(found, 2 * torch.eye(6, 10))
        assert PADDED.rows_of(found, interior).count_nonzero() == 6
        del found


def test_convolutions_without_vectors_keep_the_zeros():
    text = "Y[n,o,y,x] = sum(k, W[o,k] * F[n,k+12*y+x])"
    csr = Operand(Format("csr"), "float32", 0.0, (("", ""), ("int64", "int64")))
    operands = {"W": csr, "F": Operand(dense_format(2), "float32")}
    made = declare(parse(text), operands, ("Y",), sizes={"y": 6, "x": 10, "k": 27, "F_1": 100})
    placed = [replace(d, interior=INTERIOR) if d.name == "Y" else d for d in made.declarations]
    with options.override(vector_bytes=0):
        kernel = plan(replace(made, declarations=tuple(placed)))
        weight, images = torch.zeros(3, 27), torch.randn(2, 100)
        weight[:2, [0, 2, 13, 26]] = torch.randn(2, 4)
        places = torch.arange(27) + 12 * torch.arange(6)[:, None, None] + torch.arange(10)[:, None]
        PADDED.empty(SHAPE, torch.float32, INTERIOR).fill_(7)
        for _ in range(3):
            found = kernel(sparsify.tensor(weight, "csr"), images)
            torch.testing.assert_close(found, torch.einsum("ok,nyxk->noyx", weight, images[:, places]))
            assert PADDED.rows_of(found, INTERIOR).count_nonzero() == 2 * 2 * 60
