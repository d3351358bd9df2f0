"""Models that write in place into edges, features, masks, inputs and buffers, against the model on new inputs."""

import copy
import warnings

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.graph.operators import is_mutating

from .in_place_programs import WIDTH, Program

PROGRAMS = 24


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def inputs(nodes, edges, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, WIDTH, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, nodes, (2, edges), generator=draw)


def observed(model, x, edge_index, parameters, *, turned=False):
    """All that a call shows: results, what became of inputs and buffers, and gradients where they are enabled.

    Args:
        turned: whether features are columns in memory.
    """
    leaf = x.clone().requires_grad_(torch.is_grad_enabled())
    given, edges = (leaf.t().contiguous().t() if turned else leaf * 1), edge_index.clone()
    found = model(given, edges)
    results = found if isinstance(found, tuple) else (found,)
    state = [one.detach().clone() for one in (*results, given, edges, model.state, model.edges)]
    if not torch.is_grad_enabled():
        return state
    loss = sum(one.square().sum() for one in results if one.is_floating_point())
    return state, torch.autograd.grad(loss, [leaf, *parameters], allow_unused=True)


def runs(program, **how):
    """Whether a call of a copy goes through: gradients may read what a later write changes, and views have strides."""
    try:
        observed(copy.deepcopy(program), *inputs(23, 70, 1), (), **how)
    except RuntimeError:
        return False
    return True


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_programs_that_write_in_place(seed):
    program = Program(seed)
    source = copy.deepcopy(program)
    has_gradients = runs(program)
    with torch.set_grad_enabled(has_gradients):
        can_turn = runs(program, turned=True)
    with torch.set_grad_enabled(has_gradients), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sparse = apply(program, "gcn", inputs(20, 55, 0), trainable=has_gradients)
        for call in range(2):
            args = inputs(23 + call, 70, call + 5)
            turned = bool(call) and can_turn
            want = observed(source, *args, tuple(source.parameters()), turned=turned)
            have = observed(sparse, *args, tuple(program.parameters()), turned=turned)
            torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9, msg=lambda m: f"{m}\n{program}")
    is_refused = any("the source model runs" in str(warning.message) for warning in said)
    assert is_refused != bool(sparse.variants), str(program)


class Shifted(nn.Module):
    """Two kinds of nodes in one range of numbers, as heterogeneous convolutions have them."""

    def forward(self, x, edge_index):
        e = edge_index.clone()
        e[0] += 30
        return torch.zeros_like(x).index_add(0, e[1], x[e[0]])


class Clamped(nn.Module):
    """A write that changes nothing for the example inputs."""

    def forward(self, x, edge_index):
        e = edge_index.clone()
        e[0].clamp_(max=30)
        return torch.zeros_like(x).index_add(0, e[1], x[e[0]])


class Replaced(nn.Module):
    """Rows of edges that are assigned."""

    def forward(self, x, edge_index):
        e = edge_index.clone()
        e[1] = (e[0] + e[1]) % 25
        return torch.zeros_like(x).index_add(0, e[1], x[e[0]])


@pytest.mark.parametrize("kind", [Shifted, Clamped, Replaced])
def test_edges_that_are_edited_follow_later_graphs(kind):
    x, edge_index = torch.randn(60, 8), torch.randint(0, 30, (2, 90))
    model = kind()
    sparse = apply(model, "gcn", (x, edge_index))
    assert sparse.report.regions
    late = torch.randint(0, 60 if kind is not Shifted else 30, (2, 120))
    for edges in (late, late.flip(0).contiguous()):
        torch.testing.assert_close(sparse(x, edges), model(x, edges))


class Counting(nn.Module):
    """A parameter and a buffer that calls change."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, 3.0, -4.0]))
        self.register_buffer("calls", torch.zeros(2, 2))

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
            self.calls[0, 1] += 1
        y = x * self.weight
        with torch.no_grad():
            y[0] = 2.0  # the gradient of y passes by
        return y, self.calls[0]


def test_parameters_and_buffers_written_without_gradients():
    model = Counting()
    source = copy.deepcopy(model)
    recipe = {"schema": 1, "name": "none", "sparsify": []}
    sparse = apply(model, recipe, torch.randn(4, 3), trainable=True)
    for seed in range(2):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        for one in (source, sparse):
            one.zero_grad()
            one(x)[0].square().sum().backward()
        torch.testing.assert_close(sparse(x), source(x))
        torch.testing.assert_close(model.weight.grad, source.weight.grad)
        torch.testing.assert_close(model.weight, source.weight)
        torch.testing.assert_close(sparse.calls, source.calls)


class Noise(nn.Module):
    """Random numbers by operators in place, and statistics of two calls of one module."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        first, second = torch.empty_like(x).uniform_(), torch.empty_like(x).uniform_()
        return first - second, self.norm(x), self.norm(x)


def test_draws_and_statistics_are_not_merged():
    model = Noise()
    source = copy.deepcopy(model)
    sparse = apply(model, {"schema": 1, "name": "none", "sparsify": []}, torch.randn(4, 3), verify=False)
    x = torch.randn(6, 3)
    assert sparse(x)[0].abs().max() > 0
    source(x)
    torch.testing.assert_close(sparse.norm.running_mean, source.norm.running_mean)
    assert int(sparse.norm.num_batches_tracked) == 2


class Writing(nn.Module):
    """A model that writes into its first input, and reads its second one."""

    def forward(self, x, y):
        x[0].add_(1)
        return y * 2, x


def test_inputs_in_one_memory_see_each_others_writes():
    model = Writing()
    sparse = apply(model, {"schema": 1, "name": "none", "sparsify": []}, (torch.ones(3, 2), torch.ones(3, 2)))
    for called in (model, sparse):
        x = torch.ones(3, 2)
        doubled, found = called(x, x)
        assert found is x
        assert doubled[0].tolist() == [4, 4]
        apart, other = torch.ones(3, 2), torch.ones(3, 2)
        assert called(apart, other)[0].tolist() == [[2, 2]] * 3
        assert apart[0].tolist() == [2, 2]


class Reshaping(nn.Module):
    """A write that a graph of pure operators cannot hold."""

    def forward(self, x):
        x.resize_(2, 2)
        return x * 2


def test_writes_without_a_pure_form_leave_the_model_dense_with_one_warning():
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = apply(Reshaping(), {"schema": 1, "name": "none", "sparsify": []}, torch.randn(3, 3))
    x = torch.randn(3, 3)
    torch.testing.assert_close(sparse(x.clone()), x.flatten()[:4].view(2, 2) * 2)


def test_graphs_write_only_into_what_is_outside():
    model = Program(3)
    captured = capture(model, calls.flatten(calls.signature(model), inputs(20, 55, 0), {}))
    writers = [node for node in captured.graph.nodes if node.op == "call_function" and is_mutating(node)]
    outside = {"get_attr", "placeholder"}
    assert all(one.op in outside for node in writers for one in (node.args[0], *node.args[0].all_input_nodes))


NOTHING = {"schema": 1, "name": "none", "sparsify": []}


class Lines(nn.Module):
    """A layer and statements over its result `h` and its input `x`."""

    def __init__(self, text):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.drop_here = nn.Dropout(0.5, inplace=True)
        self.register_buffer("buf", torch.arange(24.0).view(4, 6) + 0)
        known = {"torch": torch, "F": nn.functional}
        lines = "".join(f"    {line}\n" for line in text.split("\n"))
        exec(f"def steps(self, x):\n    h = self.lin(x)\n{lines}", known)
        self.steps = known["steps"]

    def forward(self, x):
        return self.steps(self, x)


def agrees(text, x=None, later=()):
    """The model that `apply` makes of statements, after it did what they do: results, and inputs written."""
    torch.manual_seed(0)
    model = Lines(text).eval()
    source = copy.deepcopy(model)
    x = torch.randn(4, 6) if x is None else x
    sparse = apply(model, NOTHING, x.clone(), verify=False)
    for given in (x, *(later or (x * 2,))):
        ours, theirs = given.clone(), given.clone()
        torch.testing.assert_close(sparse(ours), source(theirs), msg=lambda m: f"{m}\n{text}")
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        torch.testing.assert_close(sparse.buf, source.buf)
    return sparse


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "cut",
    [
        "h.hsplit(2)",
        "h.vsplit(2)",
        "torch.hsplit(h, [2, 3])",
        "h[0].hsplit(2)",
        "h.reshape(2, 2, 6).dsplit(3)",
        "h.tensor_split(3, dim=1)",
        "h.tensor_split(2)",
    ],
)
def test_lists_of_views_are_written_and_read(cut):
    with torch.no_grad():
        assert agrees(f"a, b, *_ = {cut}\na.zero_()\nreturn h, a, b").variants
        assert agrees(f"a, b, *_ = {cut}\nh.mul_(2)\nreturn a, b, h").variants
        assert agrees(f"a, b, *_ = {cut}\nk = h.clone()\nk[0] = 5\nreturn a + b, k").variants


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "call", ["torch.broadcast_tensors(h, x)", "torch.meshgrid(h[0], h[1])", "torch.meshgrid(h[0], x[1])"]
)
@pytest.mark.parametrize("write", ["h.add_(1)", "x.add_(1)"])
@pytest.mark.filterwarnings("ignore")
def test_lists_of_views_of_several_tensors_see_writes(call, write):
    with torch.no_grad():
        agrees(f"a, b = {call}\n{write}\nreturn a, b, h")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "dropout",
    [
        "self.drop(h)",
        "self.drop_here(h)",
        "F.dropout(h, 0.0, True)",
        "F.dropout2d(h[None, None], 0.3, False)[0, 0]",
        "F.alpha_dropout(h, 0.0, True)",
        "F.feature_alpha_dropout(h, 0.3, False, inplace=True)",
        "torch.dropout_(h, 0.0, True)",
    ],
)
def test_dropouts_that_drop_nothing_return_their_operand(dropout):
    with torch.no_grad():
        assert agrees(f"o = {dropout}\no += 1\nreturn o * h, h").variants
        assert agrees(f"o = {dropout}[1:].t()\nh.relu_()\nreturn o, h").variants


def test_dropouts_that_drop_nothing_do_not_write_into_inputs():
    sparse = agrees("return self.lin(self.drop_here(x))")
    leaf = torch.randn(4, 6).requires_grad_()
    sparse(leaf).sum().backward()
    assert leaf.grad is not None


STRIDED = {
    "reshape": "v = x.reshape(-1)\nv.add_(1)\nreturn self.lin(x), v",
    "contiguous": "v = x.contiguous()\nv.add_(1)\nreturn self.lin(x), v",
    "flatten": "v = x.flatten()\nx.add_(1)\nreturn v, x",
    "computed": "k = x * 2\nv = k[1:].contiguous()\nk.relu_()\nreturn v, k",
    "format": "v = x.to(memory_format=torch.contiguous_format)\nv.add_(1)\nreturn self.lin(x), v",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STRIDED)
def test_calls_in_other_strides_write_what_the_model_writes(name):
    x = torch.randn(6, 6)
    turned = x.clone().t()
    with torch.no_grad():
        sparse = agrees(STRIDED[name], x, (x + 1, turned, x - 1, torch.randn(5, 6), turned))
    assert sparse.variants
    assert torch.compile(sparse, backend="eager")(turned.clone())[0].shape == sparse(turned.clone())[0].shape


@pytest.mark.parametrize("name", STRIDED)
def test_writes_into_copies_or_not_by_other_strides_leave_the_model_dense(name):
    x = torch.randn(6, 6).t()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="the strides of x decide"):
        agrees(STRIDED[name], x, (x + 1, x.contiguous(), x))


def test_strides_that_decide_nothing_are_not_asked():
    text = "k = torch.relu_(self.lin(x).reshape(-1))\nv = x.contiguous().flatten()\nreturn k * 2, v * 2"
    x = torch.randn(6, 6)
    with torch.no_grad():
        sparse = agrees(text, x, (x.t(), x))
    (variant,) = sparse.variants
    assert variant.takes_any
    assert not any("contiguous" in str(node.target) for node in sparse.graph.nodes)


@pytest.mark.parametrize("write", ["y.add_(1)", "pass"])
def test_contiguous_tensors_keep_their_gradients_in_blocks_without(write):
    sparse = agrees(f"with torch.no_grad():\n    y = h.contiguous()\n    {write}\nreturn h * 2, y * 3")
    model, x = copy.deepcopy(sparse._source), torch.randn(4, 6)
    want = torch.autograd.grad(sum(one.sum() for one in model(x)), model.lin.weight)
    have = torch.autograd.grad(sum(one.sum() for one in sparse(x)), sparse.lin.weight)
    torch.testing.assert_close(have, want)


@pytest.mark.parametrize(
    "text",
    [
        "with torch.no_grad():\n    h.unsqueeze_(0)\nreturn h * 2",
        "k = h[:, :4] * 1\nwith torch.no_grad():\n    k.t_()\nreturn k * 2",
        "self.buf.detach_()\nself.buf.unsqueeze_(0)\nself.buf.squeeze_(0)\nreturn h * 2",
    ],
)
def test_shapes_that_change_in_place_where_graphs_cannot_follow_leave_the_model_dense(text):
    with pytest.warns(RuntimeWarning, match="changes the shape of .* in place"):
        assert not agrees(text).variants


def test_shapes_that_change_in_place_where_they_are_made_are_captured():
    assert agrees("with torch.no_grad():\n    k = h * 2\n    k.t_()\nreturn k, h").variants
    assert agrees("k = self.buf.detach()\nk.unsqueeze_(0)\nreturn k + h").variants


def test_one_of_several_results_is_written():
    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16, 16)

        def forward(self, x):
            values, places = torch.topk(self.lin(x).softmax(-1), 2)
            values /= values.sum(-1, keepdim=True)
            return values, places

    torch.manual_seed(0)
    model, x = Top().eval(), torch.randn(8, 16)
    rule = {"targets": ["param:*.weight"], "role": "weight", "source": "given", "format": "csr"}
    with torch.no_grad():
        model.lin.weight.mul_(torch.rand(16, 16) < 0.1)
        sparse = apply(model, {"schema": 1, "name": "top", "sparsify": [rule]}, x)
        torch.testing.assert_close(sparse(x), model(x))
    assert sparse.report.regions
