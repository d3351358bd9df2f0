"""Several reductions over the same rows: tiles in registers, in one loop over the entries."""

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.joint_reductions import aggregates

TEXT = """c[i] += A[i,j]
s[i,f] += A[i,j] * X[j,f]
m[i,f] max= where(stored(A[i,j]), X[j,f], -inf)
Y[i,f] = s[i,f] / max(c[i], 1)
Z[i,f] = m[i,f]"""
WANTED = (
    "split f fo fi 32; order c: i, j; order s: i, fo, j, fi; order m: i, fo, j, fi; order Y: i, fo, fi; "
    "order Z: i, fo, fi; precompute s at fo in register; precompute m at fo in register; "
    "precompute c at i in register; merge j; vector fi; parallel i dynamic A"
)


def found():
    matrix = sparsify.tensor(torch.eye(4), "csr")
    program = evaluate_kernel(TEXT, ["Y", "Z"], A=matrix, X=torch.zeros(4, 3)).program
    return aggregates(concretize(infer_format(program)))


def test_schedules():
    small = Sizes({"i": 100, "j": 100, "f": 32}, {"A": 500})
    merged, apart = found().schedules(16, 4, small)
    assert str(merged) == WANTED
    assert str(apart) == WANTED.replace("merge j; ", "")
    assert not list(found().schedules(1, 4, small))


@pytest.mark.parametrize(
    ("lanes", "width", "tile"),
    [(16, 32, 32), (16, 128, 128), (16, 300, 112), (8, 128, 32), (4, 128, 16)],
)
def test_reductions_fit_in_registers(lanes, width, tile):
    """Tiles leave some of the registers (32 with AVX-512, 16 elsewhere) for loaded values."""
    size, _ = found().tile(lanes, 4, Sizes({"f": width}, {}))
    assert size == tile


def test_far_rows_are_asked_for():
    far = Sizes({"i": 10**6, "j": 10**6, "f": 128}, {"A": 10**7})
    assert "prefetch X 32" in str(next(found().schedules(16, 4, far)))
