"""Tensors that are not in main memory: torch's operators compute, with the same results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.kernel import kernel, statement_kernel, substitute
from sparsify.errors import DeviceError
from sparsify.storage.own_memory import runs_natively

HERE = Path(__file__).parent
LIBRARIES = ("torch_cpu", "c10")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The library of a device without readable memory."""
    root = Path(torch.__file__).parent
    made = tmp_path_factory.mktemp("device") / "other_device.so"
    command = ["g++", "-O0", "-w", "-shared", "-fPIC", "-std=c++20", f"-I{root}/include", f"-L{root}/lib"]
    command += [f"-I{root}/include/torch/csrc/api/include", str(HERE / "other_device.cpp"), "-o", str(made)]
    command += [f"-l{name}" for name in LIBRARIES]
    subprocess.run(command, check=True, timeout=300)
    return made


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_a_device_whose_memory_cannot_be_read(device):
    command = [sys.executable, str(HERE / "other_device_programs.py"), str(device)]
    environment = os.environ | {"SPARSIFY_CXXFLAGS": "-O0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not [name for name, value in found.items() if value is False]
    assert "kernels run on the CPU; put them on the CPU" in found["strict"]
    assert "are on other:0 and cpu; put all of them on one device" in found["mixed"]
    warned = {name.removesuffix(" warnings"): texts for name, texts in found.items() if "warnings" in name}
    assert len(warned) == 8
    for name, texts in warned.items():
        assert len(texts) == 1, (name, texts)
        assert "region_1" in texts[0]
        assert "tensors are on other:0, kernels run on the CPU; model.cpu()" in texts[0]
    assert found["csr kernels"] == ["torch", "torch"]


@pytest.fixture
def elsewhere(monkeypatch):
    """Tensors are taken for those of another device; kernels that run all the same are an error."""

    def runs(*_):
        raise AssertionError("a kernel runs on tensors of another device")

    for module in (statement_kernel, kernel):
        monkeypatch.setattr(module, "runs_natively", lambda _: False)
    monkeypatch.setattr(statement_kernel.Frame, "__init__", runs)
    monkeypatch.setattr(substitute, "_announced", set())
    return foreign_call


@pytest.mark.usefixtures("elsewhere")
def test_programs_are_computed_by_operators_of_torch_with_one_warning():
    dense = torch.rand(5, 7).where(torch.rand(5, 7) > 0.6, torch.tensor(0.0))
    A, x = sparsify.tensor(dense, "csr"), torch.rand(7, 3, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=r"Y\[i,k\].*same results, much slower; A, x are on cpu") as said:
        found = sparsify.evaluate("Y[i,k] = relu(sum(j, A[i,j] * x[j,k]) - 1)", A=A, x=x)
    assert len(said) == 1
    found.square().sum().backward()  # without another warning
    wanted = torch.relu(dense @ x.detach().requires_grad_() - 1)
    torch.testing.assert_close(found, wanted)
    with sparsify.strict(), pytest.raises(DeviceError, match="kernels run on the CPU"):
        sparsify.einsum("ij,jk->ik", A, x)


def test_where_kernels_run():
    assert runs_natively((torch.ones(2), sparsify.tensor(torch.eye(2), "csr")))
    assert runs_natively((torch.ones(2, device="meta"),)), "it has no entries to compute with"
    assert runs_natively(())
