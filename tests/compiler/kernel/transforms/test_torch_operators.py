"""`sparsify.einsum` and `sparsify.evaluate` as operators of traced graphs: outputs and gradients."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import sparsify
from sparsify.compiler.kernel import tracing
from sparsify.storage.tensor import SparseTensor

FIVE = """
    S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)
    m[i] max= S[i,j]
    P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))
    d[i] += P[i,j]
    Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])"""


def thin(rows=7, columns=9, seed=0):
    made = torch.Generator().manual_seed(seed)
    dense = torch.rand(rows, columns, generator=made)
    return dense * (torch.rand(rows, columns, generator=made) < 0.4)


def sparse(rows=7, columns=9, seed=0, format="csr"):
    return sparsify.tensor(thin(rows, columns, seed), format)


def product(A, x):
    return sparsify.einsum("ij,jk->ik", A, x)


def fused(A, x, b):
    return sparsify.evaluate("Y[i,k] = s * relu(A[i,j] * X[j,k] + b[k])", A=A, X=x, b=b, s=0.5)


def sampled(A, x, b):
    return sparsify.evaluate("S[i,j] = A[i,j] * X[i,k] * W[j,k]", A=A, X=x, W=b)


def squared(A, x):
    """Two results, one of them sparse."""
    return sparsify.evaluate("B[i,j] = A[i,j] * A[i,j]\nY[i,k] = B[i,j] * X[j,k]", ("B", "Y"), A=A, X=x)


def attention(M, Q, K, V):
    return sparsify.evaluate(FIVE, outputs="Y", M=M, Q=Q, K=K, V=V)


def dense_only(x, y):
    return sparsify.einsum("ij,jk->ki", x, y)


CASES = {
    "product": (product, lambda: (sparse(), torch.rand(9, 4))),
    "csc": (product, lambda: (sparse(format="csc"), torch.rand(9, 4))),
    "blocks": (product, lambda: (sparse(8, 12, format="bcsr(2, 3)"), torch.rand(12, 4))),
    "fused": (fused, lambda: (sparse(), torch.rand(9, 4), torch.rand(4))),
    "sampled": (sampled, lambda: (sparse(), torch.rand(7, 4), torch.rand(9, 4))),
    "two results": (squared, lambda: (sparse(), torch.rand(9, 4))),
    "attention": (attention, lambda: (sparse(7, 7), *torch.rand(3, 7, 4))),
    "dense": (dense_only, lambda: (torch.rand(3, 4), torch.rand(4, 5))),
}


def values(tensor):
    return tensor.values() if isinstance(tensor, SparseTensor) else tensor


def results(function, operands):
    """Results and gradients of all operands, as lists of plain tensors."""
    leaves = [operand.detach().clone().requires_grad_() for operand in operands]
    found = function(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    loss = sum((values(result) * torch.arange(1.0, 1 + values(result).numel()).view_as(values(result))).sum()
               for result in found)  # fmt: skip
    gradients = torch.autograd.grad(loss, leaves)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert isinstance(gradient, SparseTensor) == isinstance(leaf, SparseTensor)
    return [values(tensor).detach() for tensor in (*found, *gradients)]


def compare(function, compiled, operands):
    for want, have in zip(results(function, operands), results(compiled, operands), strict=True):
        torch.testing.assert_close(have, want)


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_one_graph_with_gradients(name):
    function, make = CASES[name]
    compare(function, torch.compile(function, fullgraph=True, backend="aot_eager"), make())


def test_inductor():
    function, make = CASES["fused"]
    compiled = torch.compile(lambda *given: torch.sin(function(*given)) * 2, fullgraph=True)
    compare(lambda *given: torch.sin(function(*given)) * 2, compiled, make())


@pytest.mark.sampled(3)
def test_dynamic_shapes_are_one_graph():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fused, fullgraph=True, backend=counter, dynamic=True)
    for rows, columns, width in ((7, 9, 4), (30, 21, 5), (8, 300, 17)):
        operands = sparse(rows, columns), torch.rand(columns, width), torch.rand(width)
        compare(fused, compiled, operands)
    assert counter.frame_count == 1


def test_shapes_that_do_not_fit_are_found_while_tracing():
    with pytest.raises(Exception, match="j has extent 9 in operand 0 and 8 in operand 1"):
        torch.compile(product, fullgraph=True, backend="aot_eager")(sparse(), torch.rand(8, 4))


@pytest.mark.sampled(2)
def test_operands_of_modules_and_closures():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(sparse())
            self.register_buffer("graph", sparse(7, 7, seed=1))

        def forward(self, x):
            return sparsify.einsum("hi,ij,jk->hk", mask, self.graph @ self.weight.to_dense(), x) + product(
                self.weight, x
            )

    mask = sparse(7, 7, seed=2)
    layer, x = Layer(), torch.rand(9, 4)
    want = layer(x)
    wanted = torch.autograd.grad(want.square().sum(), layer.weight)[0]
    have = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(have, want)
    found = torch.autograd.grad(have.square().sum(), layer.weight)[0]
    torch.testing.assert_close(found.values(), wanted.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", [sparsify.Format("csr"), {"Y": "csr"}], ids=str)
def test_formats_schedules_sizes_and_outputs_reach_the_graph(format):
    def function(A, x, n):
        Y = sparsify.evaluate("Y[i,j] = A[i,j] * x[j] * n * (i + 1)", format=format, A=A, x=x, n=n)
        Z = sparsify.evaluate("z[i,r] = Y[i,j] * x[j]", Y=Y, x=x, sizes={"r": 3})
        return Z + sparsify.einsum("ij,j->i", A, x, schedule=order)[:, None]

    order = sparsify.Schedule.parse("order i, j")
    operands = sparse(), torch.rand(9)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for number in (3, 5, 2.5, True):
        torch.testing.assert_close(compiled(*operands, number), function(*operands, number))


def unknown(A, B):
    return sparsify.einsum("ij,jk->ik", A, B)


def test_unknown_patterns_break_loose_graphs_as_nonzero_does():
    operands = sparse(), sparse(9, 5, seed=1)
    counter = CompileCounterWithBackend("aot_eager")
    got = torch.compile(lambda A, B: unknown(A * 2, B), backend=counter)(*operands)
    torch.testing.assert_close(got.to_dense(), 2 * unknown(*operands).to_dense())
    assert counter.frame_count == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "backend, format", [("aot_eager", "dcsr"), ("aot_eager", "coo"), ("inductor", "csr")]
)
def test_unknown_patterns_have_unbacked_sizes(backend, format):
    def function(A, B):
        return sparsify.einsum("ij,jk->ik", A, B, format=format)

    operands = sparse(), sparse(9, 5, seed=1)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    compare(function, compiled, operands)
    assert compiled(*operands).format == sparsify.Format(format)


def test_unknown_patterns_within_the_graph():
    def function(A, B, x):
        C = sparsify.einsum("ij,jk->ik", A, B)
        return sparsify.einsum("ik,kl->il", C, x)

    operands = sparse(), sparse(9, 5, seed=1), torch.rand(5, 3)
    compare(function, torch.compile(function, fullgraph=True, backend="aot_eager"), operands)


@pytest.mark.parametrize(
    "name, mode", [*((name, "real") for name in CASES), ("sampled", "fake"), ("fused", "symbolic")]
)
def test_make_fx(name, mode):
    function, make = CASES[name]
    operands = make()

    def with_gradient(*given):
        leaves = [operand.detach().requires_grad_() for operand in given]
        found = function(*leaves)
        found = found if isinstance(found, tuple) else (found,)
        return *found, *torch.autograd.grad(found, leaves, [torch.ones_like(result) for result in found])

    graph = make_fx(with_gradient, tracing_mode=mode)(*operands)
    others = [operand * 0.5 for operand in operands]
    for want, have in zip(with_gradient(*others), graph(*others), strict=True):
        torch.testing.assert_close(values(have), values(want))


def test_fake_tensors():
    operands = sparse(), sparse(9, 5, seed=1), torch.rand(9, 4)
    with FakeTensorMode() as mode:
        A, B, x = (mode.from_tensor(operand) for operand in operands)
        Y, S = product(A, x), sampled(A, torch.rand(7, 4), torch.rand(9, 4))
        with pytest.raises(DynamicOutputShapeException):
            unknown(A, B)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        C = unknown(*(mode.from_tensor(operand) for operand in operands[:2]))
    assert Y.shape == (7, 4)
    assert S.format == sparsify.Format("csr")
    assert isinstance(S.values(), torch._subclasses.FakeTensor)
    assert C.shape == (7, 5)
    assert isinstance(C.nnz, torch.SymInt)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(sparse())
            self.bias = nn.Parameter(torch.rand(4))

        def forward(self, x):
            return fused(self.weight, x, self.bias)

    layer, x = Layer(), torch.rand(9, 4)
    program = torch.export.export(layer, (x,), strict=strict)
    assert any("sparsify" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), layer(x))
    apart = program.run_decompositions()
    torch.testing.assert_close(apart.module()(x), layer(x))
    targets = {node.target for node in apart.graph.nodes if node.op == "call_function"}
    assert torch.ops.sparsify.compute.default in targets
    assert not any("index_put" in str(target) for target in targets), "the weight stays sparse"
    learned = [value for value in apart.state_dict.values() if value.requires_grad]
    assert {value.shape for value in learned} == {(4,), (layer.weight.nnz,)}


def test_other_processes_run_what_was_exported(tmp_path, monkeypatch):
    class Layer(nn.Module):
        def forward(self, pos, crd, vals, x):
            A = SparseTensor(sparsify.Pattern(sparsify.Format("csr"), (7, 9), (None, pos), (None, crd)), vals)
            return product(A, x)

    A, x = sparse(), torch.arange(36.0).view(9, 4)
    operands = A.pattern.pos[1], A.pattern.crd[1], A.values(), x
    entries, width = torch.export.Dim("entries", min=2), torch.export.Dim("width", min=2)
    dynamic = (None, {0: entries}, {0: entries}, {1: width})
    torch.export.save(torch.export.export(Layer(), operands, dynamic_shapes=dynamic), tmp_path / "layer.pt2")
    monkeypatch.setattr(tracing, "_kernels", {})  # as in a process that has traced nothing
    program = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(program(*operands), product(A, x))
    other = sparse(7, 9, seed=3), torch.rand(9, 6)
    arrays = other[0].pattern.pos[1], other[0].pattern.crd[1], other[0].values()
    torch.testing.assert_close(program(*arrays, other[1]), product(*other))


def test_texts_of_graphs_say_what_the_kernels_are(monkeypatch):
    A, x = sparse(), torch.rand(9, 4)
    graph = make_fx(product)(A, x)
    monkeypatch.setattr(tracing, "_kernels", {})
    torch.testing.assert_close(graph(A, x), product(A, x))
    (text,) = {node.args[0] for node in graph.graph.nodes if "sparsify" in str(node.target)}
    broken = text.replace("Program", "print")
    with pytest.raises(sparsify.SparsifyError, match="is no program of this version of sparsify"):
        torch.ops.sparsify.compute(broken, [A, x], [])
