"""Runs a command line inside the test process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sparsify.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command line printed, and its exit status."""

    status: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("recipes", "ls")` runs `sparsify recipes ls`."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return call
