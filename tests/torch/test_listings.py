"""The listings of Scorch's paper and slides, as they are written there; the line that imports Scorch alone changes."""

import pytest
import torch as real

import sparsify

MIXTURE = """
import scorch as torch
from scorch.nn import functional as F

# Inputs, (B, D_in)
x = torch.randn(B, D_in)
# Expert embeddings, (N_experts, D_in, D_out)
E = torch.randn(N_experts, D_in, D_out)
# Sparse gating function, (B, N_experts)
gates = torch.rand(B, N_experts)
# Select one expert per input
gates = F.one_hot(gates.argmax(1), N_experts)
# Dispatch inputs to experts, (B, N_experts, D_in)
x_dispatch = torch.rearrange(x, "bd->bnd", n=N_experts)
# Apply experts, (B, N_experts, D_out)
y_experts = torch.einsum("bnd,ndh->bnh", x_dispatch, E)
# Combine expert outputs, (B, D_out)
y = torch.einsum("bnd,bn->bd", y_experts, gates)
"""
ONE_HOT = "F.one_hot(gates.argmax(1), N_experts)"
MIXTURE_OF_COORDINATES = MIXTURE.replace(ONE_HOT, f"{ONE_HOT}.to_sparse()")

SDDMM = """
import scorch as torch

A = torch.rand(n, n) * (torch.rand(n, n) < 0.2)
A = A.to_sparse()
B, C = torch.rand(n, k), torch.rand(k, n)
D = torch.einsum("ij,ik,kj->ij", A, B, C)
"""

ATTENTION = """
import scorch as torch

Q, K, V = torch.rand(n, k), torch.rand(n, k), torch.rand(n, k)
mask = (torch.rand(n, n) < 0.2).float().fill_diagonal_(1).to_sparse()
S = torch.einsum("ij,ik,jk->ij", mask, Q, K)
P = torch.softmax(S, -1)
Y = torch.einsum("ij,jk->ik", P, V)
"""

INFERENCE = """
import scorch as torch

A = torch.tensor(a, format="csr")
B = torch.tensor(b, format="csr")
C = torch.tensor(c, format="dcsr")
D = torch.einsum("ik,kj->ij", A, B) + C
"""


def run(listing: str, **given: object) -> dict:
    """The names that a listing leaves."""
    names = dict(given)
    exec(listing.replace("scorch", "sparsify.torch"), names)
    return names


@pytest.mark.parametrize("listing", [MIXTURE, MIXTURE_OF_COORDINATES], ids=["dispatch", "to_sparse"])
def test_mixture_of_experts(listing):
    found = run(listing, B=6, D_in=5, D_out=3, N_experts=4)
    gates = found["gates"]
    assert isinstance(gates, sparsify.SparseTensor) and gates.nnz == 6
    chosen = found["E"][gates.to_dense().argmax(1)]
    wanted = real.einsum("bd,bdh->bh", found["x"], chosen)
    real.testing.assert_close(found["y"], wanted)


def test_the_dense_listing_has_the_same_result():
    """The slide's model before the import changes: `torch` in the place of `sparsify.torch`, without `rearrange`."""
    sizes = {"B": 6, "D_in": 5, "D_out": 3, "N_experts": 4}
    dense = MIXTURE.replace("scorch", "torch").replace(
        'torch.rearrange(x, "bd->bnd", n=N_experts)', "x[:, None].expand(B, N_experts, D_in)"
    )
    dense = dense.replace(ONE_HOT, f"{ONE_HOT}.float()")  # torch's einsum promotes no dtypes
    real.manual_seed(3)
    wanted = dict(sizes)
    exec(dense, wanted)
    real.manual_seed(3)
    real.testing.assert_close(run(MIXTURE, **sizes)["y"], wanted["y"])


def test_sampled_product():
    found = run(SDDMM, n=12, k=3)
    assert isinstance(found["D"], sparsify.SparseTensor) and found["D"].nnz == found["A"]._nnz()
    real.testing.assert_close(found["D"].to_dense(), found["A"].to_dense() * (found["B"] @ found["C"]))


def test_sparse_attention():
    found = run(ATTENTION, n=12, k=3)
    scores = (found["Q"] @ found["K"].T).masked_fill(found["mask"].to_dense() == 0, float("-inf"))
    real.testing.assert_close(found["Y"], scores.softmax(-1) @ found["V"])


def test_the_example_of_format_inference_is_csr():
    a, b, c = (real.eye(4) + real.diag(real.ones(3), n) for n in (1, 1, -1))
    found = run(INFERENCE, a=a, b=b, c=c)["D"]
    assert str(found.format) == "dense, compressed"
    real.testing.assert_close(found.to_dense(), a @ b + c)
