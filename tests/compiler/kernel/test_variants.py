"""Kernel variants by operand sizes, built once and found before code generation."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify.compiler import pipeline
from sparsify.compiler.cpp.toolchain import cache, fingerprint
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.kernel import variants
from sparsify.compiler.kernel.kernel import _planned, compile_program
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.options import Options, override

COLUMNS = (1, 7, 8, 9, 16, 24, 33, 64, 100, 128, 129, 136, 200, 300)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    forget(monkeypatch)
    with override(cache_dir=tmp_path) as options:
        yield options


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    _planned.cache_clear()


def matrix(rows: int = 37, columns: int = 53, density: float = 0.3) -> sparsify.SparseTensor:
    seeded = torch.Generator().manual_seed(0)
    dense = torch.randn(rows, columns, generator=seeded)
    return sparsify.tensor(dense * (torch.rand(rows, columns, generator=seeded) < density), "csr")


def product_step(a: sparsify.SparseTensor, columns: int) -> GeneratedStep:
    kernel, _ = einsum_kernel("ij,jk->ik", (a, torch.ones(a.shape[1], columns)), None, None)
    (step,) = kernel.steps
    assert isinstance(step, GeneratedStep)
    return step


@pytest.mark.parametrize("density", [0.05, 0.9])
def test_every_number_of_columns_is_right(density: float) -> None:
    a = matrix(density=density)
    for columns in COLUMNS:
        b = torch.randn(53, columns, generator=torch.Generator().manual_seed(columns))
        torch.testing.assert_close(sparsify.einsum("ij,jk->ik", a, b), a.to_dense() @ b, rtol=1e-4, atol=1e-4)


def test_one_kernel_is_right_for_all_sizes() -> None:
    a = matrix()
    step = product_step(a, 16)
    call = step.variants.best(Sizes({"i": 37, "j": 53, "k": 16}, {"A": a.nnz})).call
    for columns in COLUMNS:
        b, out = torch.randn(53, columns), torch.empty(37, columns)
        sizes = {"i_extent": 37, "j_extent": 53, "k_extent": columns, "A_nnz": a.nnz, "serial_threshold": 0}
        order, _ = step._signature
        pattern = a.pattern
        call(
            tuple(sizes[name] for name in order),
            (pattern.pos[1], pattern.crd[1], a.values(), b, out),
            2,
            None,
        )
        torch.testing.assert_close(out, a.to_dense() @ b, rtol=1e-4, atol=1e-4)


def test_sizes_that_ask_for_the_same_schedule_share_a_kernel() -> None:
    step = product_step(matrix(), 16)
    first, second, third = (
        step.variants.best(Sizes({"i": 9, "j": 9, "k": columns})) for columns in (14, 16, 17)
    )
    assert first is second
    assert first is not third
    assert first.signature == third.signature


def test_schedules_with_and_without_threads_take_the_same_arguments() -> None:
    """A program that ran on one thread for small operands may run on all threads for the next operands."""
    step = product_step(matrix(), 16).step
    alone, shared = (
        compile_stages(step, Schedule.parse(text), 32).loops
        for text in ("order i, j, k", "order i, j, k; parallel i")
    )
    assert "parallel" in str(shared) and "parallel" not in str(alone)
    assert alone.sizes == shared.sizes and alone.buffers == shared.buffers


@pytest.mark.sampled(2)
def test_many_sizes_end_in_the_kernel_for_all(own_cache: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "LIMIT", 2)
    best = product_step(matrix(), 16).variants.best
    found = [best(Sizes({"i": 9, "j": 9, "k": columns})) for columns in (16, 24, 40, 48)]
    assert found[2] is found[3]
    assert "tail 64 32 16" in str(found[3].stages.schedule)


def test_found_kernels_pass_no_stages(own_cache: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = matrix(), torch.ones(53, 128)
    program = product_step(a, 16).program
    built = compile_program(program, options=own_cache, sizes=sizes_of(program, (a, b)))
    forget(monkeypatch)
    staged = []
    compile_stages = pipeline.compile_stages
    monkeypatch.setattr(
        pipeline, "compile_stages", lambda *given: staged.append(given) or compile_stages(*given)
    )
    found = compile_program(program, options=own_cache, sizes=sizes_of(program, (a, b)))
    torch.testing.assert_close(found(a, b), a.to_dense() @ b)
    assert (built.cache, found.cache, found.key, staged) == ("miss", "hit", built.key, [])
    assert "sparsify_kernel" in found.steps[0].stages.cpp  # type: ignore[union-attr]
    assert len(staged) == 1


def test_kernels_keep_no_operands() -> None:
    a = matrix()
    kept = weakref.ref(a.pattern)
    step = product_step(a, 48)
    assert "split k ko ki 48" in str(step.stages.schedule)
    del a
    gc.collect()
    assert kept() is None, f"held by {[type(holder) for holder in gc.get_referrers(kept())]}"


@pytest.mark.sampled(2)
def test_a_changed_compiler_finds_nothing(own_cache: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    program = product_step(matrix(), 16).program
    compile_program(program, options=own_cache)
    forget(monkeypatch)
    monkeypatch.setattr(variants, "fingerprint", lambda: "another")
    assert compile_program(program, options=own_cache).cache == "miss"


def test_fingerprint_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint.sparsify, "__file__", str(tmp_path / "__init__.py"))
    seen = set()
    for text in ("a = 1", "a = 12", "a = 12"):
        (tmp_path / "module.py").write_text(text)
        (tmp_path / "notes.txt").write_text(text * 3)
        fingerprint.fingerprint.cache_clear()
        seen.add(fingerprint.fingerprint())
    fingerprint.fingerprint.cache_clear()
    assert len(seen) >= 2


def test_stages_are_dumped_for_found_kernels_too(
    own_cache: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = product_step(matrix(), 16).program
    with override(dump=("loops",)) as options:
        for _ in range(2):
            compile_program(program, options=options, sizes=UNKNOWN)
            assert "--- loops" in capsys.readouterr().err
            forget(monkeypatch)


def test_patterns_of_one_shape_have_the_kernel_of_their_density(own_cache: Options) -> None:
    thin, full = matrix(400, 400, 0.005), matrix(400, 400, 0.5)
    x = torch.rand(400)
    kernel, _ = einsum_kernel("ij,j->i", (thin, x), None, None)
    (step,) = kernel.steps
    assert isinstance(step, GeneratedStep)
    keys = []
    for a in (thin, full, thin, full):
        torch.testing.assert_close(kernel(a, x), a.to_dense() @ x, rtol=1e-4, atol=1e-4)
        keys.append(step.library.key)
    assert keys[0] != keys[1]
    calls = [frame.call for frame in step._frames.values()]
    assert len(calls) == 2
    assert calls[0] is not calls[1]


@pytest.mark.sampled(2)
def test_a_measured_schedule_is_preferred_for_about_these_sizes(own_cache: Options) -> None:
    a, b = matrix(), torch.randn(53, 64)
    kernel, _ = einsum_kernel("ij,jk->ik", (a, b), None, None)
    (step,) = kernel.steps
    assert isinstance(step, GeneratedStep)
    expected = a.to_dense() @ b
    torch.testing.assert_close(kernel(a, b), expected, rtol=1e-4, atol=1e-4)
    usual = step.stages.schedule
    other = Schedule.parse(str(usual).replace("ki 64", "ki 16"))
    assert other != usual
    kernel.prefer(step, other, sizes_of(kernel.program, (a, b)))
    torch.testing.assert_close(kernel(a, b), expected, rtol=1e-4, atol=1e-4)
    assert step.stages.schedule == other
    c = torch.randn(53, 40)
    torch.testing.assert_close(kernel(a, c), a.to_dense() @ c, rtol=1e-4, atol=1e-4)
    assert step.stages.schedule != other
    torch.testing.assert_close(kernel(a, b), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(step.with_schedule(None).compute((a, b)), expected, rtol=1e-4, atol=1e-4)
