"""What runs say while they take long."""

import pytest

from sparsify import options
from sparsify.runner.measure import Timing
from sparsify.runner.progress import Progress


def told(
    capsys: pytest.CaptureFixture[str], dense_ms: float, quiet: bool, apply_ms: float = 15_000.0
) -> list[str]:
    progress = Progress("bert", "1 x 4096 tokens", dense_ms)
    with options.override(quiet=quiet):
        progress.begun()
        progress.applied(apply_ms)
        progress.turn([Timing(0.0, [9_000.0, 8_000.0]), Timing(0.0, [2_100.0, 2_000.0])])
    found = capsys.readouterr()
    assert found.out == ""
    return found.err.splitlines()


def test_long_runs_say_what_they_do(capsys):
    assert told(capsys, 8_000.0, quiet=False) == [
        "bert: a dense pass of 1 x 4096 tokens takes 8 s, the run about 56 s and the time of making it sparse, which "
        "begins",
        "bert: it is sparse after 15 s; passes are compared",
        "bert: turn 2, dense 8 s, sparse 2 s",
    ]


def test_short_passes_show_no_turns(capsys):
    lines = told(capsys, 900.0, quiet=False)
    assert lines == ["bert: it is sparse after 15 s; passes are compared"]


@pytest.mark.parametrize(
    ("dense_ms", "quiet", "apply_ms"), [(900.0, False, 5_000.0), (8_000.0, True, 15_000.0)]
)
def test_short_and_quiet_runs_say_nothing(capsys, dense_ms, quiet, apply_ms):
    assert told(capsys, dense_ms, quiet, apply_ms) == []
