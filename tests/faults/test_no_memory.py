"""Tensors without memory of their own: sparse models compute them as the dense ones do, or raise what these raise."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import sparsify
from sparsify.compiler.arrays.digest import digest, interpreted, sample
from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import FormatError
from sparsify.options import current
from sparsify.passes.operands.content_memo import Memo, fingerprint

NODES, EDGES = 20, 60
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))
E = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(1))


class Sum(nn.Module):
    """Sums over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, edge_index):
        messages = self.linear(x)
        return torch.zeros_like(messages).index_add_(0, edge_index[1], messages[edge_index[0]])


@pytest.fixture
def sparse():
    torch.manual_seed(0)
    return sparsify.apply(Sum().eval(), "gcn", (X, E))


def edge_index(edges: torch.Tensor) -> torch.Tensor:
    kind = pytest.importorskip("torch_geometric").EdgeIndex
    return kind(edges, sparse_size=(NODES, NODES))


def two(tensor: torch.Tensor) -> torch.Tensor:
    return TwoTensor(tensor, tensor.clone())


def plain(found: torch.Tensor) -> torch.Tensor:
    return found.a if isinstance(found, TwoTensor) else found


CALLS = {
    "edge_index": lambda: (X, edge_index(E)),
    "two features": lambda: (two(X), E),
    "two edges": lambda: (X, two(E)),
    "two of both": lambda: (two(X), two(E)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrapped_tensors_run_densely(sparse, call):
    given = call()
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="without memory of its own for kernels to read; give"):
            found = sparse(*given)
        dense = sparse.original(*given)
        assert type(found) is type(dense)
        torch.testing.assert_close(plain(found), plain(dense))
        assert torch.equal(plain(sparse(*given)), plain(found))


def test_entries_that_a_wrapped_tensor_shares_may_change(sparse):
    edges = E.clone()
    given = edge_index(edges)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="as_tensor"):
            sparse(X, given)
        edges.copy_(E.flip(0))
        torch.testing.assert_close(sparse(X, given), sparse.original(X, E.flip(0)))


def test_examples_may_be_wrapped():
    given = edge_index(E)
    with pytest.warns(RuntimeWarning, match="edge_index is of class EdgeIndex, .* as_tensor"):
        sparse = sparsify.apply(Sum().eval(), "gcn", (X, given))
    torch.testing.assert_close(sparse(X, given), sparse.original(X, given))
    with torch.no_grad():
        torch.testing.assert_close(sparse(X, E), sparse.original(X, E))


def test_fake_tensors_give_fake_results(sparse):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        with pytest.warns(RuntimeWarning, match="class FakeTensor"):
            found = sparse(mode.from_tensor(X), mode.from_tensor(E))
        assert found.shape == (NODES, 4) and type(found) is type(mode.from_tensor(X))


def test_meta_tensors_raise_what_the_dense_model_raises(sparse):
    with pytest.raises(RuntimeError) as dense:
        sparse.original(X, E.to("meta"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same device") as found:
            sparse(X, E.to("meta"))
        assert str(found.value) == str(dense.value)


@pytest.mark.parametrize("read", [digest, sample, lambda tensor: interpreted(tensor, tensor.nbytes)])
@pytest.mark.parametrize("tensor", [E.to("meta"), two(E)], ids=["meta", "two"])
def test_digests_of_no_memory_raise(read, tensor):
    with pytest.raises(ValueError, match="reads memory"):
        read(tensor)
    read(tensor[:, :0])


@pytest.mark.parametrize("tensor", [E.to("meta"), two(E)], ids=["meta", "two"])
def test_nothing_is_found_again_for_what_cannot_be_read(tensor):
    assert fingerprint(tensor) != fingerprint(tensor)
    memo, made = Memo(4), iter(range(2))
    assert [memo.get((tensor,), lambda: next(made)) for _ in range(2)] == [0, 1]


def test_kernels_refuse_what_they_cannot_read():
    S = sparsify.tensor(torch.eye(NODES))
    for other in (two(X), X.to("meta")):
        with pytest.raises(FormatError, match=r"without memory of its own|is on meta"):
            sparsify.einsum("ij,jk->ik", S, other)


@pytest.mark.parametrize("bind", [foreign_call.bind_address, foreign_call._bind_ctypes])
def test_buffers_without_memory_reach_no_kernel(bind):
    source = r"""extern "C" long long run(const long long *sizes, void *const *buffers, const void *context) {
      return buffers[0] ? *(const char *)buffers[0] : 0;
    }"""
    made = library(source, {}, current(), symbol="run")
    with pytest.raises(ValueError, match="none of its own"):
        bind(made.address)((), (X.to("meta"),), 1, None)
    bind(made.address)((), (X[:0].to("meta"),), 1, None)
    bind(made.address)((), (None,), 1, None)
