"""Explanation of kernels: all stages, in order, and abbreviated or omitted parts."""

import re
from collections.abc import Callable

import pytest

from sparsify import options
from sparsify.compiler import pipeline
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.explain import (
    Section,
    abridged,
    explain_kernel,
    explain_program,
    only,
    printed,
)
from sparsify.compiler.kernel.kernel import compile_program, result_index_dtypes
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.storage.format import Format

SCALAR = Options(vector_bytes=0)


def program(text: str, **formats: str) -> Program:
    operands = {}
    for name, spelled in formats.items():
        form = Format(spelled)
        indices = tuple(("", "") if level == "dense" else ("int32", "int32") for level in spelled.split(", "))
        operands[name] = Operand(form, "float32", index_dtypes=() if form.is_dense else indices)
    return declare(parse(text), operands)


SPMV = program("y[i] = A[i,j] * x[j]", A="dense, compressed", x="dense")


def titles(sections: tuple[Section, ...]) -> list[str]:
    return [section.title for section in sections]


def test_one_step() -> None:
    sections = explain_program(SPMV, options=SCALAR)
    assert titles(sections) == ["einsum", "formats", "notation", "schedule", "loops", "cpp"]
    texts = {section.title: section.text for section in sections}
    assert texts["einsum"] == "y[i] = sum(j, A[i,j] * x[j])"
    assert texts["formats"].splitlines()[0].split() == [
        *("A[i,j]", "float32", "dense(i)", "compressed(j)", "d0s1"),
        *("operand;", "int32", "coordinates"),
    ]
    assert texts["formats"].endswith("i, j at run time")
    assert texts["notation"] == "forall i: forall j: y[i] += A[i,j] * x[j]"
    assert "order i, j" in texts["schedule"]
    assert "for pA2 in int64(A2_pos[i])..int64(A2_pos[i + 1]):" in texts["loops"]
    assert 'extern "C"' in texts["cpp"]


def test_the_schedule_can_be_given_back() -> None:
    chosen = next(s for s in explain_program(SPMV, options=SCALAR) if s.title == "schedule")
    first = chosen.text.splitlines()[0]
    again = explain_program(SPMV, Schedule.parse(first), SCALAR)
    assert next(s for s in again if s.title == "schedule").text.splitlines()[0] == first


def test_products_of_torch_are_steps_of_their_own() -> None:
    text = "T[j,k] = X[j,f] * W[f,k]\nY[i,k] = A[i,j] * T[j,k]"
    dense = "dense, dense"
    whole = program(text, A="dense, compressed", X=dense, W=dense)
    sections = explain_program(whole, options=SCALAR)
    assert titles(sections) == [
        "einsum",
        "formats",
        "step 1 of 2: T = torch.mm(X, W)",
        "step 2 of 2: Y by a generated kernel",
    ]
    assert not sections[2].inner
    assert titles(sections[3].inner) == ["notation", "schedule", "loops", "cpp"]


def test_sources_and_cost() -> None:
    sections = explain_program(SPMV, options=SCALAR, sources={"A": "from edge_index"}, cost="4 us")
    assert "from edge_index; int32 coordinates" in sections[1].text
    assert sections[2] == Section("cost", "4 us")


def test_refused_schedules_are_among_the_runners_up(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("parallel j", "order i, j")
    monkeypatch.setattr(pipeline, "candidates", lambda *_: map(Schedule.parse, texts))
    schedule = next(s for s in explain_program(SPMV, options=SCALAR) if s.title == "schedule").text
    assert schedule.splitlines()[0] == "order i, j"
    assert "runners-up\n  parallel j static\n    refused: " in schedule


def test_searched_schedules_are_explained() -> None:
    text = "Y[i,j] = A[i,j] * B[i,j] * sum(k, P[i,k] * Q[j,k])"
    masked = program(text, A="dense, compressed", B="dense, compressed", P="dense, dense", Q="dense, dense")
    sizes = Sizes({"i": 1000, "j": 1000, "k": 512}, {"A": 40_000, "B": 40_000})
    with options.override(vector_bytes=32):
        schedule = next(s for s in explain_program(masked, sizes=sizes) if s.title == "schedule").text
    first, why = schedule.splitlines()[:2]
    assert "precompute lanes_w = w over ki in register" in first
    assert re.fullmatch(r"searched \d+ schedules, estimated \d+ us, default \d+ us", why)
    plain = next(s for s in explain_program(masked, options=SCALAR) if s.title == "schedule").text
    assert "searched" not in plain


def test_operands_that_are_turned_around_are_named() -> None:
    turned = program("Y[j,k] = A[i,j] * X[i,k]", A="dense, compressed", X="dense, dense")
    notation = next(s for s in explain_program(turned, options=SCALAR) if s.title == "notation").text
    why = "A_10 is A stored d1s0, once for each pattern: the loops run in another order"
    assert notation.startswith(f"{why}\nforall j: forall k: forall i:")


def test_conversions_are_named_with_their_reason() -> None:
    formats = {"A": Format("bcsr(2,2)"), "B": Format("csr")}
    operands = {name: Operand(f, "float32", 0.0, result_index_dtypes(f)) for name, f in formats.items()}
    statements = parse("Y[i,k] = A[i,j] * B[j,k]")
    into_blocks = declare(statements, operands, formats={"Y": Format("bcsr(3,3)")})
    computed, converted = explain_program(into_blocks, options=SCALAR)[2:]
    notation = next(s for s in computed.inner if s.title == "notation").text
    assert "A_01 is A stored d0s1, once for each pattern: the pattern of Y is not known" in notation
    assert converted.title.endswith("no kernel writes i/3: dense, j/3: compressed, i%3: dense, j%3: dense")


def test_a_kernel_says_whether_it_was_found() -> None:
    with options.override(vector_bytes=0):
        kernel = compile_program(SPMV)
    (section,) = only(explain_kernel(kernel), ["kernel"])
    assert kernel.key in section.text
    assert section.text.startswith(("hit, found ", "miss, built in "))


def test_only_keeps_what_holds_a_section() -> None:
    sections = (Section("a"), Section("step", inner=(Section("a", "x"), Section("b"))))
    assert only(sections, ["a"]) == (Section("a"), Section("step", inner=(Section("a", "x"),)))
    assert only(sections, ["c"]) == ()


def test_sections_print_and_become_data() -> None:
    section = Section("step", "text", (Section("loops", "for i\n  y"),))
    assert str(section) == "step\n  text\n\n  loops\n    for i\n      y"
    assert section.to_dict() == {
        "title": "step",
        "text": "text",
        "sections": [{"title": "loops", "text": "for i\n  y"}],
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a 1\na 2\na 3\na 4\na 5\nb", "a 1\n... 3 lines alike\na 5\nb"),
        ("  x_0 = 0\n" * 6, "  x_0 = 0\n  ... 4 lines alike\n  x_0 = 0"),
        ("a 1\na 2\na 3\na 4\nb", "a 1\na 2\na 3\na 4\nb"),  # unchanged
        ("", ""),
    ],
)
def test_abridged(before: str, after: str) -> None:
    assert abridged(before) == after


def test_golden(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    registers = "split k ko ki 16; order i, ko, j, ki; precompute w at ko in register; vector ki"
    texts = (f"{registers}; parallel i dynamic A", registers, "order i, j, k")
    monkeypatch.setattr(pipeline, "candidates", lambda *_: map(Schedule.parse, texts))
    chain = program(
        "Y[i,k] = relu(A[i,j] * T[j,k] + b[k])", A="dense, compressed", T="dense, dense", b="dense"
    )
    sections = explain_program(chain, options=Options(vector_bytes=32))
    shown = [title for title in titles(sections) if title != "cpp"]  # has golden files of its own
    golden("explain/spmm.txt", printed(only(sections, shown)))
