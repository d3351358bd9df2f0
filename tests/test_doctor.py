"""What the doctor finds, and how `sparsify env` and `sparsify doctor` print it."""

import json
from pathlib import Path

import pytest

import sparsify
from sparsify import doctor, options
from sparsify.doctor import Finding
from sparsify.errors import ENVIRONMENT, FINE, SparsifyError

from .cli.conftest import Cli, cli

__all__ = ["cli"]


def finding(name: str) -> Finding:
    """The finding of one name."""
    return next(found for found in doctor.diagnose() if found.name == name)


def test_environment() -> None:
    found = doctor.environment()
    assert found["vector_bytes"] in (0, 16, 32, 64)
    assert found["sparsify"] == sparsify.__version__
    assert Path(found["openmp"]).is_file()
    with options.override(vector_bytes=16):
        assert doctor.environment()["vector_bytes"] == 16


def test_environment_without_a_compiler() -> None:
    with options.override(compiler="no-such-compiler"):
        assert "no-such-compiler is not a program" in doctor.environment()["compiler"]


def test_everything_required_is_here(cli: Cli) -> None:
    outcome = cli("doctor")
    assert outcome.status == FINE, outcome.out
    assert "ok      kernel: compiled, loaded and checked" in outcome.out


def test_no_compiler(cli: Cli) -> None:
    with options.override(compiler="no-such-compiler"):
        outcome = cli("doctor", "--json")
    assert outcome.status == ENVIRONMENT
    said = json.loads(outcome.out)
    assert (said["schema"], said["healthy"]) == (1, False)
    found = {entry["name"]: entry for entry in said["findings"]}
    assert not found["compiler"]["ok"]
    assert "apt-get install g++" in found["compiler"]["remedy"]
    assert not found["kernel"]["ok"]
    assert found["torch"]["ok"]


def test_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("in the way")
    with options.override(cache_dir=tmp_path):
        found = finding("cache")
    assert not found.ok
    assert "cannot be written to" in found.text
    assert "SPARSIFY_CACHE_DIR" in found.remedy


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sparsify.einsum
    monkeypatch.setattr(sparsify, "einsum", lambda *operands: right(*operands) + 1)
    with pytest.raises(SparsifyError, match="a sparse product differs from torch's by 1"):
        doctor.checked_kernel()


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "plot", ("no_such_package", "json"))
    found = doctor.extra("plot")
    assert (found.ok, found.required) == (False, False)
    assert str(found) == (
        "-       extra plot: no_such_package not installed\n        pip install 'sparsify-fx[plot]'"
    )
    assert doctor.is_healthy((found,))


def test_env_prints_rows(cli: Cli) -> None:
    lines = cli("env").out.splitlines()
    assert any(line.split()[:2] == ["vector", "bytes"] for line in lines)
    assert json.loads(cli("env", "--json").out)["schema"] == 1
