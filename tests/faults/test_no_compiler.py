"""No C++ compiler, or one that builds nothing: the same results by torch's operators, and one warning."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify import errors, options
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.kernel import substitute

TESTS = Path(__file__).parent.parent
WHOLE = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
import torch
import sparsify
from sparsify import doctor
from sparsify.errors import CompilerNotFoundError
from graph_models import MESSAGES, HandWritten, TwoLayers, graph

torch.manual_seed(0)
found = {}
caught = warnings.catch_warnings(record=True)
said = caught.__enter__()
warnings.simplefilter("always", RuntimeWarning)

def check(name, own, right):
    found[name] = bool(torch.allclose(own, right, rtol=1e-4, atol=1e-5))

dense = torch.rand(30, 20).where(torch.rand(30, 20) > 0.8, torch.tensor(0.0))
A, x = sparsify.tensor(dense, "csr"), torch.rand(20, 6)
check("einsum", sparsify.einsum("ij,jk->ik", A, x), dense @ x)
product = sparsify.einsum("ij,kj->ik", A, A)
assert isinstance(product, sparsify.SparseTensor), "two sparse modes stay sparse"
check("product of sparse matrices", product.to_dense(), dense @ dense.T)
assert product.pattern is sparsify.einsum("ij,kj->ik", A, A).pattern, "same operands, same pattern"
with sparsify.strict():
    try:
        sparsify.einsum("ij,jk->ik", A, x)
    except CompilerNotFoundError:
        found["strict"] = True

a, b = A.detach().requires_grad_(), x.clone().requires_grad_()
own = sparsify.evaluate("y[i,k] = tanh(A[i,j] * x[j,k])", A=a, x=b)
c = dense.clone().requires_grad_()
right = torch.tanh(c @ b)
check("evaluate", own, right)
(first,) = torch.autograd.grad(own.square().sum(), b, create_graph=True)
(wanted,) = torch.autograd.grad(right.square().sum(), b, create_graph=True)
check("gradient", first, wanted)
again = torch.autograd.grad(first.square().sum(), (a, b))
wanted = torch.autograd.grad(wanted.square().sum(), (c, b))
check("second gradient of a sparse operand", again[0].to_dense(), wanted[0] * (dense != 0))
check("second gradient", again[1], wanted[1])
found["warnings of calls"] = len(said)

model = TwoLayers(HandWritten).eval()
sparse = sparsify.apply(model, MESSAGES, graph())
for inputs in (graph(), graph(31, 90, seed=2)):
    with torch.no_grad():
        check(f"messages of {len(inputs[0])} nodes", sparse(*inputs), model(*inputs))
    sparse.verify_gradients(*inputs)
found["regions"] = [(region.kernel, region.cache) for region in sparse.report.regions]
trained = sparsify.apply(TwoLayers(HandWritten).train(), MESSAGES, graph())
trained.verify_gradients(*graph())

pruned = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
rule = {"targets": ["param:*.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
recipe = {"schema": 1, "name": "pruned", "sparsify": [rule]}
inputs = torch.randn(5, 32)
small = sparsify.apply(pruned, recipe, inputs)
check("pruned", small(inputs), small.original(inputs))
check("compiled", torch.compile(small, backend="aot_eager")(inputs), small.original(inputs))
exported = torch.export.export(small, (inputs,))
check("exported", exported.module()(inputs), small.original(inputs))
found["explained"] = "no C++ compiler" in str(sparsify.explain(small))
found["warnings"] = [str(warning.message) for warning in said if "in place of kernels" in str(warning.message)]
found["doctor"] = [str(one) for one in doctor.diagnose() if one.name in ("compiler", "without kernels")]
print(json.dumps(found))
"""


@pytest.mark.sampled(4)
def test_a_process_without_a_compiler(tmp_path):
    environment = {name: text for name, text in os.environ.items() if name not in ("CXX", "SPARSIFY_CXX")}
    environment |= {"PATH": str(tmp_path), "SPARSIFY_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WHOLE, str(TESTS / "passes")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = [name for name, value in found.items() if value is False]
    assert not wrong
    assert found["strict"]
    assert found["warnings of calls"] == 1
    assert found["regions"] == [["torch", "none"]] * 2
    # One of calls, one a model.
    assert len(found["warnings"]) == 4, found["warnings"]
    assert all("apt-get install g++" in text for text in found["warnings"])
    compiler, instead = found["doctor"]
    assert "no kernels are built" in compiler
    assert "apt-get install g++" in compiler
    assert instead.startswith("ok")
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """A process that has announced nothing and built nothing; no kernels are on disk."""
    monkeypatch.setattr(substitute, "_announced", set())
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    with options.override(cache_dir=tmp_path / "cache", compiler=str(tmp_path / "none")):
        yield tmp_path


@pytest.mark.usefixtures("nothing")
def test_the_compiler_that_the_user_named_is_in_the_warning():
    A = sparsify.tensor(torch.eye(3), "csr")
    with pytest.warns(RuntimeWarning, match="none is not a program on the PATH") as said:
        sparsify.einsum("ij,j->i", A, torch.ones(3))
    sparsify.einsum("ij,kj->ik", A, A)  # without another warning
    assert len(said) == 1


def test_wrong_flags_are_in_the_warning_and_the_compiler_is_asked_once(nothing):
    A = sparsify.tensor(torch.eye(3), "csr")
    flags = ("-fno-such-flag-of-any-compiler",)
    with options.override(compiler=None, compiler_flags=flags):
        with pytest.warns(RuntimeWarning, match="correct SPARSIFY_CXXFLAGS=-fno-such-flag") as said:
            found = sparsify.einsum("ij,j->i", A, torch.ones(3))
        assert len(said) == 1
        assert "for an empty program too" in str(said[0].message)
        torch.testing.assert_close(found, torch.ones(3))
        torch.testing.assert_close(sparsify.evaluate("y[i] = 2 * A[i,j]", A=A), torch.full((3,), 2.0))
        with sparsify.strict(), pytest.raises(errors.BuildError, match="SPARSIFY_CXXFLAGS"):
            sparsify.einsum("ij,jk->ik", A, torch.ones(3, 2))


def test_a_compiler_that_hangs_is_waited_for_once(nothing):
    cxx = nothing / "c++"
    cxx.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo hangs\necho run >> {nothing}/runs\nsleep 60\n'
    )
    cxx.chmod(0o755)
    A = sparsify.tensor(torch.eye(3), "csr")
    with options.override(compiler=str(cxx), compiler_timeout=0.2), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for text in ("y[i] = A[i,j] * 2", "y[i] = A[i,j] * 3", "y[i] = A[i,j] * 4"):
            sparsify.evaluate(text, A=A)
    runs = (nothing / "runs").read_text().split()
    # A kernel and an empty program; what leads from Python to kernels asks with a limit of its own.
    assert len(runs) <= 4


@pytest.mark.usefixtures("nothing")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
class TestResults:
    """What is computed without a compiler."""

    def test_unstored_zeros_annihilate_infinities(self):
        A = sparsify.tensor(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), "csr")
        x = torch.tensor([float("nan"), 3.0])
        assert sparsify.einsum("ij,j->i", A, x).tolist() == [6.0, 0.0]

    def test_large_operands_are_not_made_dense(self):
        """10^12 entries, of which a few are stored."""
        rows = torch.arange(0, 10**6, 7)
        places = torch.stack([rows, rows.flip(0)])
        A = sparsify.tensor((places, torch.ones(len(rows)), (10**6, 10**6)), "csr")
        assert sparsify.einsum("ij,j->i", A, torch.ones(10**6)).sum() == len(rows)
        assert sparsify.einsum("ij,jk->ik", A, A).nnz == len(rows)
        assert sparsify.evaluate("Y[i,j] = A[i,j] + B[i,j]", A=A, B=A.T.to(format="csr")).nnz >= len(rows)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool, torch.complex64])
    def test_dtypes(self, dtype):
        dense = (torch.arange(12).reshape(3, 4) % 3).to(dtype)
        A = sparsify.tensor(dense, "csr")
        found = sparsify.einsum("ij,kj->ik", A, dense)
        assert found.dtype is dtype
        wide = dense.to(torch.complex64) @ dense.to(torch.complex64).T
        assert torch.equal(found.to(torch.complex64), (wide != 0).to(wide) if dtype is torch.bool else wide)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
    def test_modes_without_coordinates(self, shape):
        A = sparsify.tensor(torch.zeros(shape), "csr")
        found = sparsify.einsum("ij,jk->ik", A, torch.ones(shape[1], 2))
        assert torch.equal(found, torch.zeros(shape[0], 2))
        assert sparsify.evaluate("m[i] max= A[i,j]", A=A).shape == (shape[0],)

    def test_operands_of_another_dtype_or_shape_are_refused(self):
        A = sparsify.tensor(torch.eye(3), "csr")
        with pytest.raises(errors.ShapeError):
            sparsify.einsum("ij,j->i", A, torch.ones(4))

    def test_transforms_of_torch(self):
        A = sparsify.tensor(torch.eye(3) * 2, "csr")

        def product(x: torch.Tensor) -> torch.Tensor:
            return sparsify.einsum("ij,j->i", A, x)

        many = torch.rand(4, 3)
        torch.testing.assert_close(torch.func.vmap(product)(many), many * 2)
        torch.testing.assert_close(torch.func.jacrev(product)(many[0]), torch.eye(3) * 2)
        primal, tangent = torch.func.jvp(product, (many[0],), (many[1],))
        torch.testing.assert_close((primal, tangent), (many[0] * 2, many[1] * 2))

    def test_functions_and_monoids_of_users(self):
        sparsify.register_function("bent_without_compiler", "where(x < 1, x, 1 + 0.1 * (x - 1))")
        sparsify.register_monoid("largest_without_compiler", "where(abs(x) < abs(y), y, x)", 0)
        dense = torch.tensor([[0.0, -3.0, 2.0], [0.0, 0.0, 0.0]])
        A = sparsify.tensor(dense, "csr")
        found = sparsify.evaluate("y[i] largest_without_compiler= A[i,j]", A=A)
        assert found.tolist() == [-3.0, 0.0]
        bent = sparsify.evaluate("Y[i,j] = bent_without_compiler(A[i,j])", A=A)
        torch.testing.assert_close(bent.to_dense(), torch.where(dense < 1, dense, 1 + 0.1 * (dense - 1)))
