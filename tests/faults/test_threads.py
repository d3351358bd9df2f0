"""Calls of several threads: right results, no errors, and captures that change nothing for other threads."""

import copy
import os
import random
import sys
import threading
import time
import warnings
from contextvars import copy_context

import pytest
import torch
from torch import nn
from torch._dynamo.exc import InternalTorchDynamoError
from torch.fx import _symbolic_trace as tracing

import sparsify
from sparsify.passes.save import distinct

PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}}],
}
PAUSE = lambda: None  # noqa: E731  # what a capture does in the middle of its export
# What Dynamo says of a model that changes while it compiles.
GUARDS = "Guard failed on the same frame it was created"
SECONDS = float(os.environ.get("SPARSIFY_STRESS_SECONDS", "3"))


class Graph(nn.Module):
    """Two layers of messages, with dropout and a normalisation that counts."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 32), nn.Linear(32, 4), nn.BatchNorm1d(4)

    def forward(self, x, edges):
        if torch.compiler.is_compiling():
            PAUSE()
        for layer in (self.first, self.second):
            x = layer(x)
            x = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.norm(x)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).eval()


def together(*works):
    """Runs functions in threads of their own, under the options of this one; the errors that they raise."""
    errors = []
    contexts = [copy_context() for _ in works]

    def guarded(work):
        try:
            contexts.pop().run(work)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 120)
        assert not thread.is_alive(), "a thread waits for ever"
    return errors


def assert_as_before():
    assert torch.compiler.is_compiling() is False
    assert torch.compiler.is_exporting() is False
    assert max is __builtins__["max"]
    assert not hasattr(max, "choice")
    assert not hasattr(nn.Module.__call__, "choice")
    assert torch.backends.mkldnn.enabled
    assert not any("Inside" in str(type(f[1])) for f in warnings.filters)
    assert "confined" not in type(sys.stderr).__module__


def test_first_calls_of_other_sizes():
    model = perceptron()
    sparse = sparsify.apply(model, PRUNED, torch.randn(64, 128))
    dense = sparse.state_dict()
    wanted = copy.deepcopy(model)
    wanted.load_state_dict(dense)
    results = []

    def call(rows):
        with torch.no_grad():
            x = torch.randn(rows, 128)
            results.append((wanted(x), sparse(x)))

    assert not together(*[lambda rows=rows: call(rows) for rows in (1, 8, 1, 8, 1, 8)])
    for want, found in results:
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    assert len(results) == 6
    assert len(sparse.variants) == 2, "those with one row have one graph, the others another"
    assert_as_before()


@pytest.fixture
def in_capture(monkeypatch):
    """A model with a known graph, while another thread is in the middle of capturing it for training."""
    started, ended = threading.Event(), threading.Event()
    torch.manual_seed(0)
    model = Graph().eval()
    x, edges = torch.randn(30, 16), torch.randint(0, 30, (2, 90))
    with torch.no_grad():
        sparse = sparsify.apply(model, "gcn", (x, edges))
        sparse(x, edges)

    def pause():
        started.set()
        assert ended.wait(60)

    monkeypatch.setattr(sys.modules[__name__], "PAUSE", pause)
    kinds = [{"training": True, "inputs": (x, edges)}]
    other = threading.Thread(target=copy_context().run, args=(sparse.prepare, kinds))
    other.start()
    assert started.wait(60)
    yield model, sparse, x, edges
    ended.set()
    other.join(60)
    assert len(sparse.variants) == 2
    assert_as_before()


def test_known_calls_do_not_wait_for_captures(in_capture):
    _model, sparse, x, edges = in_capture
    durations = []
    with torch.no_grad():
        for _ in range(50):
            begun = time.perf_counter()
            sparse(x, edges)
            durations.append(time.perf_counter() - begun)
    assert (
        sorted(durations)[25] < 1
    )  # the capture lasts until the test ends: a call that waits for it takes 60 s
    assert len(sparse.variants) == 1


def test_plain_modules_see_nothing_of_captures(in_capture, capsys):
    model, _sparse, x, edges = in_capture
    assert torch.compiler.is_compiling() == torch.compiler.is_exporting() == False  # noqa: E712
    assert max(2, 1) == 2
    with torch.no_grad():
        wanted = copy.deepcopy(model)(x, edges)
        assert torch.equal(model(x, edges), wanted), "the model itself, whose mirror is being captured"
    assert not any(type(tensor).__name__ == "FakeTensor" for tensor in model.parameters())
    assert not model.training
    assert not model.norm.training
    print("loud", file=sys.stderr)
    assert "loud" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="loud"):
        warnings.warn("loud", UserWarning, stacklevel=1)


@pytest.mark.sampled(3)
def test_compiled_models_of_torch_run_during_captures():
    """Also while fx begins to trace, and ends."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(3, 8)
    compiled = torch.compile(model, backend="eager")
    want, found, stop = compiled(x), [], threading.Event()

    def run():
        while not stop.is_set() and all(found):
            found.append(not tracing.is_fx_tracing() and torch.equal(compiled(x), want))

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(4):
        edges = torch.randint(0, 30, (2, 90))
        sparsify.apply(Graph().eval(), "gcn", (torch.randn(30, 16), edges), verify=False)
    stop.set()
    thread.join()
    assert found and all(found)


def test_dynamo_takes_back_no_patches_of_captures():
    """Dynamo reverts the patches of fx while it compiles, and applies them again, whichever thread made them."""
    inside, reverted, ended = threading.Event(), threading.Event(), threading.Event()
    seen = []

    class Inner(nn.Module):
        def forward(self, x):
            return x * 2

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            if torch.compiler.is_compiling() and not inside.is_set() and tracing.is_fx_tracing():
                inside.set()
                assert reverted.wait(60)
                seen.append(nn.Module.__call__)
            return self.inner(x) + 1

    def compile():
        assert inside.wait(60)
        with tracing._maybe_revert_all_patches():
            reverted.set()
            assert ended.wait(60)

    def capture():
        try:
            sparse.append(sparsify.apply(Outer().eval(), {"schema": 1, "name": "none"}, torch.randn(3)))
        finally:
            ended.set()

    sparse = []
    assert not together(capture, compile)
    assert hasattr(seen[0], "choice"), "calls of modules are traced while Dynamo compiles elsewhere"
    assert_as_before()


@pytest.mark.usefixtures("in_capture")
def test_other_threads_have_their_own_modes_before_autograd():
    """torch keeps one list for the process; symbols of a compilation would go into the graph of the capture."""
    model, x = perceptron(), torch.randn(5, 128)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert torch._ops._len_torch_dispatch_stack_pre_dispatch() == 0


def test_states_are_saved_and_copied_during_captures(in_capture, tmp_path):
    model, sparse, x, edges = in_capture
    state, twin = sparse.state_dict(), copy.deepcopy(sparse)
    sparsify.save(sparse, tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor)
    with torch.no_grad():
        assert torch.equal(twin(x, edges), sparse(x, edges))


def test_children_forked_during_captures_capture_themselves(in_capture):
    _model, sparse, x, edges = in_capture
    pid = os.fork()
    if not pid:
        status = 1
        try:
            torch.set_num_threads(1)  # as workers of a DataLoader do: threads of OpenMP do not outlive a fork
            with torch.no_grad():
                known = sparse(x, edges)
                fresh = perceptron()
                made = sparsify.apply(fresh, PRUNED, torch.randn(4, 128), verify=False)
                made(torch.randn(4, 128))
            status = 0 if known.shape == (30, 4) and not torch.compiler.is_compiling() else 2
        finally:
            os._exit(status)
    deadline = time.time() + 60
    while time.time() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child waits for a lock that nobody holds")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_captures_leave_no_trace(error, monkeypatch):
    model, x, edges = Graph().train(), torch.randn(30, 16), torch.randint(0, 30, (2, 90))
    sparse = sparsify.apply(model, "gcn")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with monkeypatch.context() as patch:

        def interrupt():
            raise error

        patch.setattr(sys.modules[__name__], "PAUSE", interrupt)
        with pytest.raises(error):
            sparse(x, edges)
    assert_as_before()
    assert not sparse.variants
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    sparse(x, edges)
    assert len(sparse.variants) == 1


def test_modes_that_another_thread_sets():
    """Calls meet the modes of before or after: half of the modules in one of them would be a capture of its own."""
    sparse, x, edges = sparsify.apply(Graph(), "gcn"), torch.randn(30, 16), torch.randint(0, 30, (2, 90))
    sparse.prepare([{"training": training, "inputs": (x, edges)} for training in (False, True)])
    until = time.perf_counter() + min(SECONDS, 1)

    def toggle():
        while time.perf_counter() < until:
            sparse.train(not sparse.training)

    def call():
        while time.perf_counter() < until:
            with torch.no_grad():
                sparse(x, edges)

    assert not together(toggle, call, call)
    assert len(sparse.variants) == 2


class Encoder(nn.Module):
    """A model with a method that runs its modules, and a constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.scale = nn.Linear(64, 64), nn.Linear(64, 64), 1.0

    def forward(self, x):
        scale = self.scale
        if torch.compiler.is_compiling():
            PAUSE()
        return self.second(torch.relu(self.first(x))) * scale

    def encode(self, x):
        return torch.relu(self.first(x))


def test_methods_of_several_threads():
    """Weights stay packed, and no graph is forgotten, while threads run methods for which weights are dense."""
    x, before = torch.randn(4, 64), sys.getswitchinterval()
    sparse = sparsify.apply(Encoder().eval(), PRUNED, x, trainable=False)
    packed, variants = sparse._weights.packed(), list(sparse.variants)
    assert packed
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="encode runs modules"):
        encoded, wanted = sparse.encode(x), sparse(x)

    def work():
        with torch.no_grad():
            for _ in range(40):
                torch.testing.assert_close(sparse.encode(x), encoded)
                assert torch.equal(sparse(x), wanted)

    sys.setswitchinterval(1e-5)
    try:
        assert not together(work, work, work)
    finally:
        sys.setswitchinterval(before)
    found = sparse._weights.packed()
    assert found.keys() == packed.keys()
    assert all(found[name] is weight for name, weight in packed.items())
    assert list(sparse.variants) == variants


@pytest.mark.parametrize("verify", [False, True])
def test_attributes_that_are_set_during_captures(verify, monkeypatch):
    x, started = torch.randn(4, 64), threading.Event()
    sparse = sparsify.apply(Encoder().eval(), PRUNED, verify=verify)

    def pause():
        started.set()
        time.sleep(0.3)

    def change():
        assert started.wait(60)
        sparse.scale = 5.0

    monkeypatch.setattr(sys.modules[__name__], "PAUSE", pause)
    with torch.no_grad():
        assert not together(lambda: sparse(x), change)
        torch.testing.assert_close(sparse(x), sparse.original(x), rtol=1e-4, atol=1e-4)


def test_hooks_in_calls_of_several_threads():
    """The first of two calls that overlap ends first; its hooks are on no module afterwards."""
    inside, ended = [threading.Event(), threading.Event()], threading.Event()
    model, x, edges = Graph().eval(), torch.randn(30, 16), torch.randint(0, 30, (2, 90))
    sparse = sparsify.apply(model, "gcn", (x, edges))
    sparse.second.register_forward_hook(lambda *_: None)
    with pytest.warns(RuntimeWarning, match="second have hooks"):
        sparse(x, edges)

    def first():
        sparse(x, edges)
        ended.set()

    def second():
        assert inside[0].wait(60)
        sparse(x, edges)

    names = {}

    def hook(*_):
        at = names.setdefault(threading.get_ident(), len(names))
        inside[at].set()
        assert (ended if at else inside[1]).wait(60)

    handle = sparse.second.register_forward_hook(hook)
    assert not together(first, second)
    handle.remove()
    assert not model.second._forward_hooks
    assert not sparse._source.second._forward_hooks


def test_states_are_saved_while_weights_are_loaded(tmp_path, monkeypatch):
    sparse, x = (
        sparsify.apply(perceptron(), PRUNED, torch.randn(4, 128), trainable=False),
        torch.randn(4, 128),
    )
    state, wanted, started = sparse.state_dict(), sparse(x), threading.Event()
    assert sparse._weights.packed()

    def paused(values):
        started.set()
        time.sleep(0.3)
        return distinct(values)

    def load():
        assert started.wait(60)
        sparse.load_state_dict(state)

    monkeypatch.setattr(sys.modules["sparsify.passes.save"], "distinct", paused)
    assert not together(lambda: sparsify.save(sparse, tmp_path), load)
    torch.testing.assert_close(sparse(x), wanted)
    loaded = sparsify.load(tmp_path, perceptron()).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.sampled(2)
def test_compiled_models():
    model = perceptron()
    sparse = sparsify.apply(model, PRUNED, torch.randn(64, 128))
    reference = copy.deepcopy(model)
    reference.load_state_dict(sparse.state_dict())
    compiled = torch.compile(sparse, backend="eager")

    def call(rows):
        x = torch.randn(rows, 128)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), reference(x), rtol=1e-4, atol=1e-4)

    calls = [lambda rows=rows: call(rows) for rows in (1, 8, 64, 5)]
    errors = together(*calls)
    if errors and all(
        isinstance(error, InternalTorchDynamoError) or GUARDS in str(error) for error in errors
    ):
        # Dynamo guards what it read of the model, which another thread changed meanwhile by a capture.
        errors = together(*calls)
    assert not errors
    assert not torch.compiler.is_compiling()


def assert_near(found, wanted):
    """Sums of many edges are rounded by the largest of their terms."""
    scale = max(1.0, float(wanted.detach().abs().max())) if wanted.numel() else 1.0
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3 * scale)


def mixed(model, sparse, dense, seed, until, counts):
    """Calls of one thread: a sparse model with its gradients, the source model, copies, states and products."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    while time.perf_counter() < until:
        nodes, count = draw.randint(1, 300), draw.randint(0, 900)
        x = torch.randn(nodes, 16, generator=generator)
        edges = torch.randint(0, nodes, (2, count), generator=generator)
        what = draw.random()
        if what < 0.5:
            with torch.no_grad():
                found, wanted = sparse(x, edges), model(x, edges)
            assert_near(found, wanted)
        elif what < 0.7:
            x.requires_grad_()
            found, wanted = (torch.autograd.grad(m(x, edges).square().sum(), x)[0] for m in (sparse, model))
            assert_near(found, wanted)
        elif what < 0.8:
            rows = torch.randn(draw.choice((1, 3, 64)), 128, generator=generator)
            pruned, reference = dense
            with torch.no_grad():
                assert_near(pruned(rows), reference(rows))
        elif what < 0.85:
            torch.set_num_threads(draw.choice((1, 2)))
        elif what < 0.9:
            twin = copy.deepcopy(sparse)
            assert twin.state_dict().keys() == model.state_dict().keys()
        else:
            square = (nodes, nodes)
            A = sparsify.tensor((edges, torch.rand(count), square), "csr", duplicates="sum")
            found = sparsify.einsum("ij,jk->ik", A, x)
            assert_near(found, A.to_dense() @ x)
        counts[seed] += 1


@pytest.mark.sampled(2)
def test_stress():
    """`SPARSIFY_STRESS_SECONDS=300` lets it run for longer."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    model, plain = Graph().eval(), perceptron()
    sparse, pruned = sparsify.apply(model, "gcn"), sparsify.apply(plain, PRUNED)
    reference = copy.deepcopy(plain)
    reference.load_state_dict(pruned.state_dict())
    counts = [0] * 8
    until = time.perf_counter() + SECONDS
    work = [
        lambda seed=seed: mixed(model, sparse, (pruned, reference), seed, until, counts) for seed in range(8)
    ]
    try:
        errors = together(*work)
    finally:
        torch.set_num_threads(threads)
    assert not errors, errors[0]
    assert all(counts)
    assert_as_before()
