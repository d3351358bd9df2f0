"""Warnings are at the line of the user's code, once for each place, and filters see its module."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsify
from sparsify.passes.capture.draft import Notices
from sparsify.warn import warn

CODE = """
import torch, sparsify
class Branches(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
sparse = sparsify.apply(Branches(), {"schema": 1, "name": "none"})
x = torch.ones(3)
sparse(x)  # here
sparsify.apply(Branches(), {"schema": 1, "name": "none"}, x)  # and here
"""


class Branches(nn.Module):
    """A model that no graph holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def test_places() -> None:
    none, x = {"schema": 1, "name": "none"}, torch.ones(3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sparsify.apply(Branches(), none, x)  # applied
        sparsify.apply(Branches(), none)(x)  # called
        torch.sort(sparsify.tensor(torch.eye(3)))  # fallen back
    places = [(warning.filename, warning.lineno) for warning in found]
    assert places[:2] == [(__file__, line_of("applied")), (__file__, line_of("called"))]
    assert set(places[2:]) <= {(__file__, line_of("fallen back"))}


def test_filters_know_the_module() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", category=RuntimeWarning, module=__name__)
        with pytest.raises(RuntimeWarning, match="Model: something"):
            Notices("Model").warn("something")


def test_once_for_each_place() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("the same")
        warn("the same")
    assert len(found) == 2


@pytest.mark.sampled(3)
def test_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    lines = [line for line in ran.stderr.splitlines() if "RuntimeWarning" in line]
    assert [line.split(": ")[0] for line in lines] == [f"{script}:8", f"{script}:9"]
