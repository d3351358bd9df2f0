"""Decisions on disk: found again for the same question and sizes alone, never from damaged or foreign files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify.compiler import pipeline
from sparsify.compiler.cpp.toolchain import cache, cache_directory
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel import decision_cache, kernel
from sparsify.compiler.kernel.kernel import compile_program
from sparsify.compiler.plan import plan
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.options import Options, override

SMALL, LARGE = Sizes({"i": 3}, {"A": 7}), Sizes({"i": 3000}, {"A": 7})


@pytest.fixture
def options(tmp_path: Path) -> Iterator[Options]:
    with override(cache_dir=tmp_path) as found:
        yield found


class Asked:
    """An answer that counts its computations."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> tuple[str, int]:
        self.times += 1
        return "order i", self.times


def plans(options: Options) -> list[Path]:
    return sorted(cache_directory.cache_dir(options).glob("*.plan"))


def test_the_same_question_is_answered_once(options: Options) -> None:
    asked = Asked()
    assert [decision_cache.recall("schedule", SMALL, asked, options) for _ in range(3)] == [
        ("order i", 1)
    ] * 3


def test_an_answer_that_cannot_be_written_is_worked_out_again(options: Options) -> None:
    class Local:
        """A local class, which no import finds."""

    for made in (Local, lambda: Local):
        assert decision_cache.recall("local", SMALL, lambda made=made: made, options) is made  # type: ignore[misc]
    assert plans(options) == []


def test_other_questions_and_sizes_have_other_answers(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    for question, sizes in (("schedule", SMALL), ("schedule", LARGE), ("steps", SMALL), ("steps", UNKNOWN)):
        decision_cache.recall(question, sizes, asked, options)
    assert asked.times == 4
    reaches = Sizes(SMALL.extents, SMALL.stored, {}, {"A": 5}, {"A": {(0,): 3}})
    decision_cache.recall("schedule", reaches, asked, options)
    assert asked.times == 5
    monkeypatch.setattr(decision_cache, "fingerprint", lambda: "another compiler")
    decision_cache.recall("schedule", SMALL, asked, options)
    assert asked.times == 6


def test_patterns_count_by_their_statistics(options: Options) -> None:
    asked = Asked()
    near, far = torch.eye(64), torch.eye(64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    for dense in (near, far, near.clone()):
        pattern = sparsify.tensor(dense, "csr").pattern
        decision_cache.recall("schedule", Sizes(patterns={"A": pattern}), asked, options)
    assert asked.times == 2


@pytest.mark.parametrize("damage", [b"", b"half", None], ids=["empty", "short", "one bit"])
def test_damaged_files_are_made_anew(options: Options, damage: bytes | None) -> None:
    asked = Asked()
    decision_cache.recall("schedule", SMALL, asked, options)
    (path,) = plans(options)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    assert decision_cache.recall("schedule", SMALL, asked, options) == ("order i", 2)
    assert decision_cache.recall("schedule", SMALL, asked, options) == ("order i", 2)


def test_files_of_others_are_not_read(options: Options) -> None:
    asked = Asked()
    decision_cache.recall("schedule", SMALL, asked, options)
    cache_directory.cache_dir(options).chmod(0o777)
    assert decision_cache.recall("schedule", SMALL, asked, options) == ("order i", 2)


def test_a_directory_that_cannot_be_used_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    asked = Asked()
    with override(cache_dir=tmp_path / "file") as options:
        assert decision_cache.recall("schedule", SMALL, asked, options) == ("order i", 1)
        assert decision_cache.recall("schedule", SMALL, asked, options) == ("order i", 2)


def test_sizes_that_change_with_every_call_do_not_fill_the_disk(options: Options) -> None:
    asked = Asked()
    for rows in range(3 * decision_cache.MOST_SIZES):
        decision_cache.recall("schedule", Sizes({"i": rows}), asked, options)
    (path,) = plans(options)
    assert path.stat().st_size < 4096
    decision_cache.recall("schedule", Sizes({"i": 0}), asked, options)
    assert asked.times == 3 * decision_cache.MOST_SIZES


def test_pruning_and_cleaning_take_plans_too(options: Options) -> None:
    decision_cache.recall("schedule", SMALL, Asked(), options)
    assert cache_directory.prune(0, options) == 0
    assert plans(options) == []
    decision_cache.recall("schedule", SMALL, Asked(), options)
    cache_directory.clean(options)
    assert plans(options) == []


def test_a_new_process_plans_nothing(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    a, x, w = sparsify.tensor(torch.eye(5), "csr"), torch.rand(5, 4), torch.rand(4, 3)
    text = "T[j,k] = x[j,l] * w[l,k]; Y[i,k] = relu(A[i,j] * T[j,k])"
    given = {"A": a, "x": x, "w": w}
    program = evaluate_kernel(text, A=a, x=x, w=w).program
    operands = tuple(given[name] for name in program.inputs)
    sizes = sizes_of(program, operands)
    first = compile_program(program, sizes=sizes)
    assert isinstance(first.steps[0], DenseProduct)

    def never(*given: object, **named: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(cache, "_memory", cache._Memory())
    monkeypatch.setattr(plan, "steps", never)
    monkeypatch.setattr(pipeline, "chosen", never)
    kernel._planned.cache_clear()
    again = compile_program(program, sizes=sizes)
    assert again is not first
    assert (again.cache, again.key) == ("hit", first.key)
    torch.testing.assert_close(again(*operands), torch.relu(x @ w))
