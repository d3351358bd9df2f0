"""Einsums over operands at hand as nests, for the tests of orders and paths."""

import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.compiler.operands.operand_types import describe
from sparsify.compiler.schedule.cost.iterations import Nest, body_of, nest_of
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.storage.format import Format


def random(shape: tuple[int, ...], density: float, format: str, seed: int = 0) -> sparsify.SparseTensor:
    """Sparse tensor with uniformly random coordinates, built without a dense tensor."""
    seeded = torch.Generator().manual_seed(seed)
    total = 1
    for extent in shape:
        total *= extent
    entries = max(1, round(total * density))
    coordinates = torch.stack([torch.randint(n, (entries,), generator=seeded) for n in shape]).unique(dim=1)
    values = torch.randn(coordinates.shape[1], generator=seeded, dtype=torch.float64)
    return sparsify.tensor((coordinates, values, shape), format)


def program_of(subscripts: str, *operands: torch.Tensor, format: str | None = None) -> tuple[Program, Sizes]:
    """Program of an einsum and the sizes of its operands, A, B, ... in the order of the text."""
    names = tuple("ABCDEFGH"[: len(operands)])
    assign = read_subscripts(subscripts, tuple(tuple(o.shape) for o in operands), names, "Y")
    described = dict(zip(names, map(describe, operands), strict=True))
    formats = {} if format is None else {"Y": Format(format)}
    program = declare((assign,), described, ("Y",), formats=formats)
    given = dict(zip(names, operands, strict=True))
    return program, sizes_of(program, [given[name] for name in program.inputs])


def nest(subscripts: str, *operands: torch.Tensor, format: str | None = None) -> Nest:
    """The nest of an einsum."""
    program, sizes = program_of(subscripts, *operands, format=format)
    (statement,) = program.statements
    found = body_of(statement)
    assert found is not None
    made = nest_of(program, statement.target, found[1], sizes, found[0])
    assert made is not None
    return made
