"""Compiler stages: order and names, verification, dumps and refusals."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparsify.compiler import pipeline
from sparsify.compiler.cpp import verify as cpp
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.pipeline import Stages, compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import ScheduleError, SparsifyError
from sparsify.options import STAGES, Options
from sparsify.storage.format import Format

NAMES = [stage.name for stage in pipeline.STAGES]


@pytest.fixture(scope="module")
def step() -> Step:
    """A sparse matrix times a vector."""
    operands = {
        "A": Operand(Format("csr"), "float32", index_dtypes=(("", ""), ("int32", "int32"))),
        "x": Operand(Format("dense"), "float32"),
    }
    made = steps(declare(parse("y[i] = A[i,j] * x[j]"), operands))[0]
    assert isinstance(made, Step)
    return made


@pytest.fixture(scope="module")
def stages(step: Step) -> Stages:
    return compile_stages(step, None, 0)


def test_names_are_those_that_options_know() -> None:
    assert STAGES[-len(NAMES) :] == tuple(NAMES)


def test_each_stage_is_what_the_one_before_was_made_into(stages: Stages) -> None:
    assert str(stages.program.statements[0]) == "y[i] = sum(j, A[i,j] * x[j])"
    assert str(stages.plain.body) == "forall i: forall j: y[i] += A[i,j] * x[j]"
    assert "precompute sum_y = y at i in register" in str(stages.schedule)
    assert "let sum_y: float32 in register:" in str(stages.notation)
    assert "A2_pos[i]" in str(stages.loops)
    assert 'extern "C"' in stages.cpp


def test_dump_to_a_folder(step: Step, stages: Stages, tmp_path: Path) -> None:
    compile_stages(step, None, 0, Options(dump=("all",), dump_dir=tmp_path))
    (folder,) = tmp_path.iterdir()
    files = sorted(folder.iterdir())
    assert [path.stem.partition("-")[2] for path in files] == NAMES
    assert files[-1].read_text() == stages.cpp.rstrip() + "\n"
    assert files[0].read_text().rstrip() == str(stages.program)


def test_dump_to_standard_error(step: Step, capsys: pytest.CaptureFixture[str]) -> None:
    compile_stages(step, None, 0, Options(dump=("notation", "schedule")))
    said = capsys.readouterr()
    assert said.out == ""
    heads = [line.split()[1] for line in said.err.splitlines() if line.startswith("--- ")]
    assert heads == ["notation", "schedule"]
    assert "forall i: forall j: y[i] += A[i,j] * x[j]\n" in said.err
    assert "the loops from outside to inside\n" in said.err


def test_dump_of_other_programs_is_kept_apart(step: Step, tmp_path: Path) -> None:
    options = Options(dump=("einsum",), dump_dir=tmp_path)
    for schedule in (None, Schedule.parse("order i, j")):
        compile_stages(step, schedule, 0, options)
    assert len(list(tmp_path.iterdir())) == 2


def test_dump_into_a_folder_that_cannot_be_written(step: Step, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparsifyError, match=r"SPARSIFY_DUMP_DIR=.*cannot be written"):
        compile_stages(step, None, 0, Options(dump=("all",), dump_dir=tmp_path / "file"))


def test_unknown_stage() -> None:
    with pytest.raises(SparsifyError, match="SPARSIFY_DUMP=notaton is no stage; did you mean notation"):
        Options(dump=("notaton",))


def test_a_stage_reaches_the_dump_before_it_fails(step: Step, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ScheduleError):
        compile_stages(step, Schedule.parse("unroll j"), 0, Options(dump=("all",)))
    assert "--- schedule" in capsys.readouterr().err


def test_an_illegal_schedule_is_refused_without_asserts_too(step: Step) -> None:
    with pytest.raises(ScheduleError):
        compile_stages(step, Schedule.parse("unroll j"), 0, Options(debug_asserts=False))


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_is_verified(step: Step, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(result: object) -> None:
        raise AssertionError(f"broken {name}")

    changed = tuple(replace(s, verify=broken) if s.name == name else s for s in pipeline.STAGES)
    monkeypatch.setattr(pipeline, "STAGES", changed)
    with pytest.raises(AssertionError, match=f"broken {name}"):
        compile_stages(step, None, 0)
    if name != "schedule":
        compile_stages(step, None, 0, Options(debug_asserts=False))


def test_candidates_that_do_not_lower_are_named(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("parallel j", "order i, j")
    monkeypatch.setattr(pipeline, "candidates", lambda *_: map(Schedule.parse, texts))
    found = compile_stages(step, None, 0)
    assert str(found.schedule) == "order i, j"
    ((refused, reason),) = found.refused
    assert str(refused) == "parallel j static"
    assert reason


def test_the_same_program_prints_the_same_text(step: Step, stages: Stages) -> None:
    assert compile_stages(step, None, 0).cpp == stages.cpp


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text.replace("}", "", 1), "closes something else|never closed"),
        (lambda text: text + "}", "closes nothing"),
        (lambda text: "#include <math.h>\n" + text, "without headers"),
        (lambda text: text * 2, "2 definitions"),
    ],
)
def test_cpp_verify(stages: Stages, change: Callable[[str], str], message: str) -> None:
    cpp.verify(stages.cpp)
    with pytest.raises(AssertionError, match=message):
        cpp.verify(change(stages.cpp))


def test_stages_are_in_the_order_of_their_results() -> None:
    assert all(a != b for a, b in itertools.pairwise(NAMES))
    assert pipeline.STAGES[pipeline.UNSCHEDULED].refuses
