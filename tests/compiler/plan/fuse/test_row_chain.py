"""One kernel or one kernel per statement: the choice for each kind of chain over entries, and its reason."""

import statistics

import pytest
import torch

import sparsify
from experiments.fusion.boundaries import PROGRAMS, _chains
from sparsify import options
from sparsify.compiler.einsum.gradient.adjoint import adjoint
from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.evaluate import _program
from sparsify.compiler.explain import explain_program, printed
from sparsify.compiler.kernel.kernel import planned
from sparsify.compiler.plan.fuse.row_chain import fusion
from sparsify.compiler.plan.fuse.rows_and_columns import divide
from sparsify.compiler.plan.plan import apart, joined, joined_rows, steps
from sparsify.compiler.plan.rematerialize import keeping
from sparsify.compiler.schedule.sizes import Sizes

# Nodes, edges of each, heads, features of a head; how many times faster one kernel was in
# `python -m experiments.fusion.boundaries`, on one thread with AVX-512: forwards, over rows, over columns.
MEASURED = {
    ("GAT", 4_000, 30, 8, 8): (3.3, 3.9, 3.2),
    ("GAT", 4_000, 30, 4, 32): (1.6, 3.2, 4.7),
    ("GAT, dropped", 4_000, 30, 2, 4): (1.7, 1.9, 2.3),
    ("GAT, dropped", 4_000, 30, 4, 32): (3.0, 2.8, 4.5),
    ("GATv2", 4_000, 30, 8, 8): (2.2, 3.5, 3.6),
    ("GATv2", 20_000, 10, 8, 8): (1.8, 3.5, 2.4),
    ("TransformerConv", 4_000, 30, 8, 8): (1.9, 2.8, 2.2),
    ("TransformerConv", 4_000, 30, 4, 32): (1.6, 1.7, 3.3),
    ("attention", 1_000, 60, 12, 64): (1.3,),
    ("edge softmax", 4_000, 30, 1, 64): (1.4,),
    ("SDDMM, softmax, SpMM", 20_000, 10, 1, 64): (0.6,),
    ("SDDMM, SpMM", 4_000, 30, 1, 64): (0.6,),
}


def chain(name: str, nodes: int, edges: int, heads: int, features: int):
    """Program of a case, and the sizes of its operands."""
    text = PROGRAMS[name]
    extents = {"i": nodes, "j": nodes, "h": heads, "f": features, "k": features}
    small = {"i": 2, "j": 2, "h": heads, "f": features, "k": features, "0": 1}
    operands = {"A": sparsify.tensor(torch.eye(2), "csr")}
    for tensor in "abQKXVw":
        if f"{tensor}[" in text:
            modes = text.split(f"{tensor}[")[1].split("]")[0].split(",")
            operands[tensor] = torch.zeros([small[mode] for mode in modes])
    if "seed[" in text:
        operands["seed"] = torch.zeros(heads, dtype=torch.int32)
    fixed = {index: extents[index] for index in "hfk" if f"{index}," in text or f",{index}]" in text}
    program = _program(text, "Y", None, fixed, operands)
    ones = {name: 1 for declared in program.declarations for name in declared.extents}
    return program, Sizes({**ones, **extents}, {"A": nodes * edges})


def gradients(program, sizes):
    """Chains over rows and over columns of a program's gradients, and their sizes."""
    again = keeping(program, sizes).again
    wrt = tuple(name for name in program.inputs if name not in ("A", "seed"))
    reverse = adjoint(program, wrt, {"Y": "g_Y"}, again)
    parts = divide(name_extents(reverse))
    return (parts.rows, parts.columns), sizes.also({parts.twin.name: parts.twin.source})


@pytest.fixture(autouse=True)
def one_thread():
    with options.override(vector_bytes=64, threads=1):
        yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_the_choice_is_that_of_the_measurement(case):
    program, sizes = chain(*case)
    measured = MEASURED[case]
    found = joined_rows(program, sizes)
    assert found.is_faster == (measured[0] > 1)
    assert (len(steps(program, sizes)) == 1) == found.is_faster
    text = printed(explain_program(program, sizes=sizes))
    assert str(found) in text
    assert ("cut, since one kernel loses" in text) == (measured[0] < 1)
    if len(measured) > 1:
        parts, more = gradients(program, sizes)
        assert all(fusion(part, more).is_faster for part in parts)


@pytest.mark.sampled(2)
def test_expected_ratios_follow_measured_ones():
    off = []
    for case, measured in MEASURED.items():
        program, sizes = chain(*case)
        found = [joined_rows(program, sizes)]
        if len(measured) > 1:
            parts, more = gradients(program, sizes)
            found += [fusion(part, more) for part in parts]
        for one, ratio in zip(found, measured, strict=True):
            expected = one.apart_us / one.fused_us
            off.append(max(expected / ratio, ratio / expected))
    assert statistics.median(off) < 1.5


def test_no_heads_and_nothing_stored_have_a_price():
    program, _ = chain("GAT", 10, 0, 8, 8)
    for extents, stored in (({"i": 0, "j": 5}, 0), ({"i": 5, "j": 5}, 0)):
        found = joined_rows(program, Sizes({**extents, "h": 8, "f": 8}, {"A": stored}))
        assert found.fused_us > 0 and found.apart_us > 0


def test_products_of_matrices_are_no_chain():
    text = "T[j,k] = sum(f, X[j,f] * W[f,k])\nY[i,k] = sum(j, A[i,j] * T[j,k])"
    given = {"A": sparsify.tensor(torch.eye(2), "csr"), "X": torch.zeros(2, 3), "W": torch.zeros(3, 4)}
    program = _program(text, "Y", None, {}, given)
    assert joined_rows(program, Sizes({"i": 2, "j": 2, "f": 3, "k": 4}, {"A": 2})) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "heads"), [("GAT", 2), ("edge softmax", 1), ("SDDMM, SpMM", 1)])
def test_both_forms_compute_the_same(name, heads):
    one = next(_chains(name, PROGRAMS[name], 20, 4, heads, 3))
    with options.override(compiler_flags=("-O0",)):
        found = [planned(one.program, form(one.program)) for form in (joined, apart)]
        results = [form.run(one.given)["Y"] for form in found]
    assert len(found[0].steps) == 1 < len(found[1].steps)
    torch.testing.assert_close(*results)
