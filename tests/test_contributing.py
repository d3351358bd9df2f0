"""The diffs of CONTRIBUTING.md apply to the package, and the changed package has what they add."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TITLES = ("An operator", "A level format", "A schedule template", "A pruning score")
USES = """
import torch
import sparsify
from sparsify.pruning.methods import METHODS, table
from sparsify.pruning.score import Facts, scores
from tests.passes.scenarios.test_operator_table import computed

for sizes in ({"m": 3, "n": 4}, {"m": 1, "n": 0}):
    torch.testing.assert_close(*computed("logaddexp(x[m,n], y[m,n])", sizes))

dense = torch.zeros(4, 7)
dense[:, ::3] = torch.rand(4, 3)
A = sparsify.tensor(dense, "dense, strided(3)")
assert A.nnz == 12
torch.testing.assert_close(A @ torch.ones(7, 2), dense @ torch.ones(7, 2))

X = torch.randn(70, 90)
assert torch.equal(sparsify.evaluate("Y[i,j] = X[j,i]", X=X), X.T)
assert "transpose ii ji in Y" in str(sparsify.explain("Y[i,j] = X[j,i]", X=X))

found = scores("relative", Facts(torch.tensor([[1.0, -3.0], [0.0, 1.0]])))
torch.testing.assert_close(found, torch.tensor([[1.25, 1.5], [0.0, 1.25]]))
assert METHODS["relative"].score == "relative"
assert table() in open("docs/pruning.md", encoding="utf-8").read()
print(sparsify.__file__)
"""


def diff_of(title: str) -> str:
    """The diff below a heading."""
    (found,) = re.findall(r"```diff\n(.*?)```", PAGE.split(f"### {title}\n")[1].split("\n#")[0], re.DOTALL)
    return found


@pytest.mark.parametrize("title", TITLES)
def test_diffs_change_three_files_at_most(title: str) -> None:
    assert 1 <= len(re.findall(r"^\+\+\+ b/", diff_of(title), re.MULTILINE)) <= 3


@pytest.mark.sampled(4)
@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the diffs")
def test_diffs_work(tmp_path: Path, kernel_cache: Path) -> None:
    for name in ("sparsify", "recipes", "models", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for title in TITLES:
        patch = ["git", "apply", "--whitespace=error", "-"]
        done = subprocess.run(
            patch, cwd=tmp_path, input=diff_of(title), text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, (
            f"the diff of {title!r} in CONTRIBUTING.md no longer applies: {done.stderr}"
        )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "SPARSIFY_CACHE_DIR": str(kernel_cache),
    }
    command = [sys.executable, "-c", USES]
    used = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert used.returncode == 0, used.stderr
    assert used.stdout.strip() == str(tmp_path / "sparsify" / "__init__.py")
