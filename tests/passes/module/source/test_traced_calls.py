"""Calls of sparse models under torch.compile: each runs by a graph that was captured for calls like it, or by none."""

import copy
import inspect

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.errors import CaptureError
from sparsify.passes.apply import apply
from sparsify.passes.capture.calls import structure_key
from sparsify.passes.module.source import traced_calls
from sparsify.passes.module.source.traced_calls import arguments, parameters_of
from sparsify.storage.interop.tensors import tensor

PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:linear.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}}],
}
X, Z = torch.rand(4, 6), torch.rand(4, 6)


class Chosen(nn.Module):
    """What it computes depends on every kind of argument."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, flag=False, other=None, *, k=1.0, batch=None, **more):
        y = self.linear(x) * (2 if flag else 1) * k
        if other is not None:
            y = y + other
        for scale, value in more.items():
            y = y + len(scale) * value
        if isinstance(batch, dict):
            return y + batch["a"] - 2 * batch["b"]
        return y if batch is None else y - batch[0] + 3 * batch[1]


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def applied(example):
    torch.manual_seed(0)
    model = Chosen().eval()
    sparse = apply(model, PRUNED, example, trainable=True, verify=False)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


@pytest.mark.sampled(2)
def test_a_call_like_the_captured_one_is_one_graph():
    example = {"x": X, "other": Z, "batch": {"a": X, "b": Z}, "k": 2.0}
    sparse, dense = applied(example)
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    named = {"batch": example["batch"], "k": 2.0, "other": Z}  # in another order
    torch.testing.assert_close(compiled(X, **named), dense(X, **named))


CALLS = {
    "another constant": ((X, True), {"k": 2.0}),
    "a constant of another type": ((X, False), {"k": 2}),
    "None in place of a tensor": ((X, False, None), {"k": 2.0}),
    "a tensor in place of None": ((X, False, Z), {"k": 2.0, "batch": None}),
    "another dtype": ((X, False, Z.double()), {"k": 2.0}),
    "fewer modes": ((X, False, Z[0]), {"k": 2.0}),
    "one row": ((X, False, Z[:1]), {"k": 2.0}),
    "no rows": ((X[:0], False, Z[:0]), {"k": 2.0}),
    "another order": ((X,), {"batch": {"b": X, "a": Z}}),
    "another container": ((X,), {"batch": (X, Z)}),
    "further names": ((X,), {"c": Z, "bbb": X}),
    "further names in another order": ((X,), {"bbb": Z, "c": X}),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CALLS)
def test_calls_unlike_the_captured_one(name):
    args, kwargs = CALLS[name]
    given = (X, False, Z)
    sparse, dense = applied({"x": X, "flag": False, "other": Z, "k": 2.0})
    if "batch" in kwargs:
        sparse(X, batch={"a": X, "b": Z})
    if "bbb" in kwargs:
        sparse(X, bb=X, a=Z)
    compiled = torch.compile(sparse, backend="aot_eager")
    torch.testing.assert_close(compiled(*given, k=2.0), dense(*given, k=2.0))
    for _ in range(2):  # outside of the graph, and as a graph of its own
        torch.testing.assert_close(compiled(*args, **kwargs), dense(*args, **kwargs))


@pytest.mark.sampled(4)
def test_more_calls_than_dynamo_compiles():
    sparse, dense = applied({"x": X})
    compiled = torch.compile(sparse, backend="aot_eager", dynamic=True)
    for k in (number / 2 for number in range(1, 13)):
        with pytest.warns(RuntimeWarning, match="more than 8 captures") if k == 4 else options.override():
            found = compiled(X, k=k)
        torch.testing.assert_close(found, dense(X, k=k))


@pytest.mark.sampled(2)
def test_integers_that_vary_are_symbols_of_one_capture():
    sparse, dense = applied({"x": X})
    compiled = torch.compile(sparse, backend="aot_eager", dynamic=True)
    for k in range(2, 14):
        torch.testing.assert_close(compiled(X, k=k), dense(X, k=k))
    assert len(sparse.variants) <= 4


def test_autocast_runs_as_the_model_has_it():
    sparse, dense = applied({"x": X})
    compiled = torch.compile(sparse, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = compiled(X), dense(X)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    torch.testing.assert_close(compiled(X), dense(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", [lambda f: f(X, False, None, 3.0), lambda f: f(X, x=Z), lambda f: f()])
def test_calls_that_the_model_refuses(call):
    sparse, _ = applied({"x": X, "flag": False, "other": None, "k": 3.0})
    with pytest.raises(CaptureError, match="do not fit the model's forward"):
        call(torch.compile(sparse, backend="aot_eager"))


def test_what_was_not_captured_cannot_be_exported():
    sparse, _ = applied({"x": X})
    with pytest.raises(CaptureError, match="has not been captured for this mode"):
        torch.export.export(sparse, (X, True), strict=False)


class Named(nn.Module):
    """Two arguments of one kind, which it uses differently."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, a=None, b=None):
        y = self.linear(x)
        y = y if a is None else y - a
        return y if b is None else y + 10 * b


@pytest.mark.sampled(2)
def test_an_export_goes_by_the_names_of_arguments():
    sparse = apply(Named().eval(), PRUNED, {"x": X, "a": Z}, trainable=True, verify=False)
    with pytest.raises(CaptureError, match="has not been captured for this mode"):
        torch.export.export(sparse, (X,), {"b": Z}, strict=False)
    sparse(X, b=Z)
    sparse(X, Z, X)
    for args, kwargs in (
        ((X,), {"a": Z}),
        ((X,), {"b": Z}),
        ((X, Z), {"b": X}),
        ((), {"b": X, "a": Z, "x": X}),
    ):
        exported = torch.export.export(sparse, args, kwargs, strict=False).module()
        torch.testing.assert_close(exported(*args, **kwargs), sparse(*args, **kwargs))


def test_an_export_that_tells_no_names_is_refused(monkeypatch):
    sparse = apply(Named().eval(), PRUNED, {"x": X, "a": Z}, trainable=True, verify=False)
    monkeypatch.setattr(traced_calls, "exported_names", lambda module: None)
    with pytest.raises(CaptureError, match=r"under which names.*export a module whose forward calls it"):
        torch.export.export(sparse, (X,), {"a": Z}, strict=False)


def test_what_autocast_changes_cannot_be_exported():
    sparse, _ = applied({"x": X})
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CaptureError, match="without autocast"):
        torch.export.export(sparse, (X,), strict=False)


class Neighbours(nn.Module):
    """Rows summed over the neighbours of a graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, adjacency):
        return adjacency @ self.linear(x)


MATRICES = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "own": tensor}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("kind", MATRICES)
def test_calls_with_sparse_matrices(kind):
    given = {"targets": ["input:adjacency"], "source": "given", "format": "csr"}
    recipe = {"schema": 1, "name": "given", "sparsify": [given]}
    model, pattern = Neighbours().eval(), torch.eye(4) + torch.eye(4).roll(1, 0)
    sparse = apply(model, recipe, (X, MATRICES[kind](pattern)), verify=False)
    compiled = torch.compile(sparse, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X, MATRICES[kind](pattern)), model(X, pattern))
    assert len(sparse.variants) == 1


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_no_rows_after_a_call_with_a_matrix():
    sparse, dense = applied({"x": X})
    compiled = torch.compile(sparse, backend="eager")
    torch.testing.assert_close(compiled(X.to_sparse()), dense(X))
    torch.testing.assert_close(compiled(X), dense(X))
    torch.testing.assert_close(compiled(X[:0]), dense(X[:0]))


def test_arguments_are_bound_as_python_binds_them():
    signature = parameters_of(inspect.signature(Chosen().forward))
    assert arguments(signature, (1, 2), {"k": 3, "m": 4}) == {"x": 1, "flag": 2, "k": 3, "more": {"m": 4}}
    assert arguments(signature, (1, 2, 3, 4), {}) is None


def test_what_cannot_be_told():
    assert structure_key([X, {"a": object()}]) is None
    assert structure_key(tensor(torch.eye(3))) is None
    assert structure_key(-0.0) != structure_key(0.0)
    assert structure_key(True) != structure_key(1)


@pytest.mark.sampled(2)
def test_models_share_no_graphs():
    graphs = []

    def counting(graph, examples):
        graphs.append(graph)
        return graph.forward

    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for _ in range(4):
            sparse, dense = applied({"x": X})
            torch.testing.assert_close(torch.compile(sparse, backend=counting)(X), dense(X))
    assert len(graphs) == 4
