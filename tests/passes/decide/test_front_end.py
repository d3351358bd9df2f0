"""Operators that no recogniser knows, in whole models: one program each, right, and dense where that is better."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparsify
from sparsify.errors import DenseSizeError, UnsupportedOperatorError

N, K = 60, 16


def recipe(targets=None):
    rules = [{"targets": [name], "source": "given", "format": form} for name, form in (targets or {}).items()]
    own = {"targets": ["input:a"], "source": "given", "format": "csr", "role": "adjacency"}
    return {"schema": 1, "name": "test", "sparsify": rules or [own]}


def model(forward, **parameters):
    made = type("Model", (nn.Module,), {"forward": forward})()
    for name, value in parameters.items():
        setattr(made, name, nn.Parameter(value) if value.is_floating_point() else value)
    return made


def adjacency(n=N, m=None, density=0.1, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (n, m or n)
    return torch.rand(shape, generator=draw) * (torch.rand(shape, generator=draw) < density) + torch.eye(
        *shape
    )


def weight(*shape, density=0.1):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=draw) * (torch.rand(shape, generator=draw) < density)


def applied(made, inputs, targets=None, **options):
    """The sparse model, its program texts; results are compared with the dense model's in float64 before."""
    sparse = sparsify.apply(made.eval(), recipe(targets), inputs, **options)
    with torch.no_grad():
        found = sparse(*inputs)
        exact = made.double()(*(t.double() if t.is_floating_point() else t for t in inputs))
        made.float()
    for have, want in zip(
        torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(exact), strict=True
    ):
        torch.testing.assert_close(have.double(), want.double(), rtol=1e-4, atol=1e-5)
    return sparse, [region.einsum for region in sparse.report.regions]


# A model of a sparse matrix and a dense one, and its program.
MODELS = {
    "sampled": (lambda self, a, x: a * (x @ x.T), "Y[i,k] = A[i,k] * sum(j, X[i,j] * X[k,j])"),
    "scaled": (lambda self, a, x: (a * 2) @ x, "Y[i,k] = sum(j, A[i,j] * 2 * X[j,k])"),
    "negated": (lambda self, a, x: -a.T @ x, "Y[i,k] = sum(j, -A[j,i] * X[j,k])"),
    "rows": (
        lambda self, a, x: (a / a.sum(1, keepdim=True)) @ x,
        "T[i] = sum(j, A[i,j]); Y[i,k] = sum(j, A[i,j] / T[i] * X[j,k])",
    ),
    "symmetric": (
        lambda self, a, x: ((d := a.sum(1).rsqrt())[:, None] * a * d[None]) @ x,
        "T[i] = 1 / sqrt(sum(j, A[i,j])); Y[i,k] = sum(j, T[i] * A[i,j] * T[j] * X[j,k])",
    ),
    "softmax": (
        lambda self, a, x: torch.softmax(torch.where(a != 0, x @ x.T, -torch.inf), -1) @ x,
        "T[i,j] = where(A[i,j] != 0, where(stored(A[i,j]), sum(k, X[i,k] * X[j,k]), 0), -inf); T1[i] = max(j, T[i,j]);"
        " T2[i,j] = exp(T[i,j] - where(T1[i] == -inf, 0, T1[i])); T3[i] = sum(j, T2[i,j]);"
        " Y[i,k] = sum(j, T2[i,j] / T3[i] * X[j,k])",
    ),
    "farthest": (
        lambda self, a, x: torch.where((a != 0)[..., None], x[None], -torch.inf).amax(1),
        "Y[i,k] = max(j, where(A[i,j] != 0, X[j,k], -inf))",
    ),
    "slices": (
        lambda self, a, x: a[:, : N // 2] @ x[: N // 2],
        "Y[i,k] = sum(j, A[i,j+0] * X[j,k])",
    ),
    "polynomial": (lambda self, a, x: torch.einsum("ij,jk,kl->il", a, x, x.T), None),
    "energy": (lambda self, a, x: (x * (a @ x)).sum(), None),
    "residual": (lambda self, a, x: ((a @ x - x) ** 2).mean(), None),
    "several": (lambda self, a, x: (a.sum(0), (a.relu() @ x).tanh(), a.abs().sum(1, keepdim=True)), None),
    "rounded": (
        lambda self, a, x: (a * 4).round() @ x,
        "T[i,j] = round(A[i,j] * 4); Y[i,k] = sum(j, T[i,j] * X[j,k])",
    ),
    "units": (lambda self, a, x: (a * a.sum(1, keepdim=True)).unsqueeze(1).sum(2, keepdim=True), None),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", MODELS)
def test_operators_become_one_program(name):
    forward, text = MODELS[name]
    inputs = (adjacency(), torch.randn(N, K))
    sparse, texts = applied(model(forward), inputs)
    assert len(texts) == 1 and not sparse.report.dense, sparse.report
    assert text is None or texts == [text]
    other = (adjacency(N + 7, seed=3), torch.randn(N + 7, K + 1))
    if name != "slices":  # of a fixed number of columns
        with torch.no_grad():
            found, want = sparse(*other), forward(None, *other)
        for have, wanted in zip(
            torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(want), strict=True
        ):
            torch.testing.assert_close(have, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(3)
def test_places_of_extrema_and_the_gradients_of_their_entries():
    """Gradients go to the first of equal entries, as those of `torch.max` over one mode do; `amax` has all of them."""
    n = 2000
    a, x = adjacency(n, density=0.002).ceil(), torch.randint(1, 3, (n, n)).float()
    places, texts = applied(model(lambda self, a, x: ((a - 0.5 * a * a).argmax(1), a.argmin(0))), (a, a))
    assert len(texts) == 1 and "argmax" not in texts[0] and not places.report.dense
    sparse, texts = applied(model(lambda self, a, x: (a * x).max(1).values + (a * x).min(1)[0]), (a, x))
    assert texts and not sparse.report.dense
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    sparse(a, ours).square().sum().backward()
    ((a * theirs).max(1).values + (a * theirs).min(1)[0]).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["sparsify", "csr", "csc", "coo"])
@pytest.mark.parametrize("name", ["sampled", "rows", "symmetric", "residual"])
def test_sparse_inputs_in_any_operator(layout, name):
    forward, _ = MODELS[name]
    a, x = adjacency(), torch.randn(N, K)
    given = sparsify.tensor(a, "csr")
    if layout != "sparsify":
        given = getattr(a, f"to_sparse_{layout}")()
    sparse = sparsify.apply(model(forward).eval(), recipe(), (given, x))
    assert len(sparse.report.regions) == 1
    with torch.no_grad():
        found = sparse(given, x)
    found = found.to_dense() if found.layout is not torch.strided else found
    torch.testing.assert_close(found, forward(None, a, x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:torch.Tensor.cumsum")  # the model's own
def test_what_no_kernel_computes_of_a_sparse_input_runs_as_the_model_has_it():
    made = model(lambda self, a, x: a.cumsum(1) @ x)
    a, x = adjacency(), torch.randn(N, K)
    with pytest.warns(RuntimeWarning, match="cumsum: no kernel computes this of a sparse input"):
        sparse = sparsify.apply(made.eval(), recipe(), (sparsify.tensor(a, "csr"), x))
    torch.testing.assert_close(sparse(sparsify.tensor(a, "csr"), x), made(a, x))


WEIGHTS = {
    "einsum": (lambda self, x: torch.einsum("bi,oi->bo", x, self.w), (64, 48), (8, 48)),
    "heads": (lambda self, x: torch.einsum("bti,hoi->bhto", x, self.w), (4, 16, 48), (2, 5, 48)),
    "batches": (lambda self, x: torch.bmm(x, self.w), (4, 48, 16), (4, 40, 48)),
    "scaled": (lambda self, x: torch.addmm(x[:, 0:1], x, self.w, beta=0.5, alpha=2.0), (48, 64), (8, 48)),
    "normed": (lambda self, x: x @ (self.w / (1 + self.w.norm(dim=1, keepdim=True))).T, (64, 48), (8, 48)),
    "bilinear": (lambda self, x: F.bilinear(x, x, self.w), (10, 48, 48), (6, 48)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_in_any_product(name):
    forward, shape, given = WEIGHTS[name]
    made = model(forward, w=weight(*shape))
    sparse, texts = applied(made, (torch.randn(given),), {"param:w": "auto"}, trainable=False)
    reasons = [entry.reason for entry in sparse.report.dense]
    if not texts:  # so few rows may be faster dense; the report says so
        assert reasons and all("expected to take" in r or "smaller dense" in r for r in reasons), (
            sparse.report
        )


def test_masked_weights_are_made_once():
    made = model(lambda self, x: F.linear(x, self.w * self.mask), w=torch.randn(64, 48))
    made.register_buffer("mask", (torch.rand(64, 48) < 0.1).float())
    sparse, texts = applied(made, (torch.randn(200, 48),), {"param:mask": "auto"}, trainable=False)
    assert texts == ["Y[i,k] = sum(j, X[i,j] * W[k,j])"]
    with torch.no_grad():
        made.w.mul_(2)
        x = torch.randn(200, 48)
        torch.testing.assert_close(sparse(x), made(x), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["sampled", "rows", "symmetric", "farthest", "residual", "several"])
def test_gradients(name):
    forward, _ = MODELS[name]
    made = model(lambda self, a, x: forward(self, a, x @ self.w), w=torch.randn(K, K))
    a, x = adjacency(), torch.randn(N, K, requires_grad=True)
    sparse = sparsify.apply(made.train(), recipe(), (a, x))
    total = sum(part.square().sum() for part in torch.utils._pytree.tree_leaves(sparse(a, x)))
    found = torch.autograd.grad(total, [sparse.w, x])
    total = sum(part.square().sum() for part in torch.utils._pytree.tree_leaves(made(a, x)))
    for have, want in zip(found, torch.autograd.grad(total, [made.w, x]), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))


def test_a_mask_as_an_input_of_attention():
    made = model(lambda self, q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m))
    near = (torch.arange(256)[:, None] - torch.arange(256)).abs() <= 4
    inputs = (*(torch.randn(2, 3, 256, 32) for _ in range(3)), near)
    sparse, texts = applied(made, inputs, {"input:m": "csr"})
    assert len(texts) == 1 and not sparse.report.dense


def test_rows_of_nothing_stay_as_torch_has_them():
    made = model(lambda self, a, x: (a / a.sum(1, keepdim=True)) @ x).eval()
    a = adjacency()
    a[3] = 0
    with pytest.warns(
        RuntimeWarning, match="stay dense: output differs from the dense model's where one is NaN"
    ):
        sparse = sparsify.apply(made, recipe(), (a, torch.randn(N, K)))
    x = torch.randn(N, K)
    assert torch.equal(sparse(a, x).isnan(), made(a, x).isnan())


def test_products_stay_where_other_regions_are_taken_back():
    made = model(
        lambda self, a, x: (a / a.sum(1, keepdim=True), torch.relu(a @ (x @ self.w))), w=torch.randn(K, 8)
    )
    a, x = adjacency(), torch.randn(N, K)
    a[3] = 0
    with pytest.warns(RuntimeWarning, match="stay dense"):
        sparse = sparsify.apply(made.eval(), recipe(), (a, x))
    assert "relu(sum(j, A[i,j] * T[j,f]))" in sparse.report.regions[0].einsum
    for have, want in zip(sparse(a, x), made(a, x), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", [(N, 1), (1, 5), (N, 7)], ids=str)
def test_layers_over_given_matrices(shape):
    layers = {"w": torch.randn(shape[1], 3), "b": torch.randn(3), "v": torch.randn(3, 1)}
    made = model(
        lambda self, a, x: a.t() @ (torch.relu(a @ (x @ self.w) + self.b) @ self.v), **layers
    ).double()
    a = adjacency(shape[0]).double()
    a[:, 0] = 0
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    sparse = sparsify.apply(made.train(), recipe(), (a, x))
    # A matrix of one entry is multiplied densely, and the report says so.
    assert len(sparse.report.regions) == (0 if shape[0] == 1 else 2)
    assert bool(sparse.report.dense) == (shape[0] == 1)
    given = [x, made.w, made.b, made.v]
    for have, want in zip(
        torch.autograd.grad(sparse(a, x).square().sum(), [x, sparse.w, sparse.b, sparse.v]),
        torch.autograd.grad(made(a, x).square().sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9)


def test_weights_of_vectors_that_follow_each_other():
    def forward(self, x):
        return torch.einsum("f,kf->k", torch.einsum("f,kf->k", x, self.w).relu(), self.v)

    made = model(forward, w=weight(64, 64), v=weight(64, 64))
    form = {"param:w": "auto", "param:v": "auto"}
    sparse = sparsify.apply(made.eval(), recipe(form), (torch.randn(64),), trainable=False)
    x = torch.randn(64)
    torch.testing.assert_close(sparse(x), made(x), rtol=1e-4, atol=1e-4)


def test_nothing_is_left_out():
    made = model(lambda self, x: torch.cdist(x, self.w), w=weight(64, 48)).eval()
    with pytest.warns(RuntimeWarning, match="cdist"):
        sparse = sparsify.apply(made, recipe({"param:w": "auto"}), (torch.randn(8, 48),), trainable=False)
    assert not sparse.report.regions
    with pytest.raises(UnsupportedOperatorError, match="cdist"):
        sparsify.apply(made, recipe({"param:w": "auto"}), (torch.randn(8, 48),), trainable=False, strict=True)


def test_one_region_serves_all_extents():
    sparse = sparsify.apply(model(MODELS["rows"][0]).eval(), recipe(), (adjacency(), torch.randn(N, K)))
    for n in (2, 17, 130):
        a, x = adjacency(n), torch.randn(n, 3)
        torch.testing.assert_close(sparse(a, x), MODELS["rows"][0](None, a, x), rtol=1e-4, atol=1e-4)
    assert len(sparse.variants) == 1


def test_sparse_results_too_large_to_be_dense_stay_as_the_model_has_them():
    count = 40_000
    at = torch.arange(count)
    a = torch.sparse_coo_tensor(
        torch.stack([at, at]), torch.linspace(-1, 1, count), (count, count)
    ).coalesce()
    made = model(lambda self, a: torch.relu(a))
    with pytest.warns(RuntimeWarning, match="is returned, and has 6,400,000,000 bytes as a dense tensor"):
        sparse = sparsify.apply(made.eval(), recipe(), (sparsify.tensor(a, "csr"),))
    assert sparse(a).layout is torch.sparse_coo


def test_operators_that_no_layout_has_say_what_to_write():
    count = 60_000
    at = torch.arange(count)
    a = sparsify.tensor((torch.stack([at, at]), torch.ones(count), (count, count)), "csr")
    with pytest.raises(DenseSizeError, match="cumsum would take"):
        sparsify.apply(model(lambda self, a, x: a.cumsum(1) @ x).eval(), recipe(), (a, torch.ones(count, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_where_other_dtypes_read_it(dtype):
    def widened(self, a, x):
        y = (a @ x) * x
        return y.float().softmax(-1), y

    made, a, x = model(widened), adjacency().to(dtype), torch.randn(N, K).to(dtype)
    sparse = sparsify.apply(made, recipe(), (a, x))
    assert [region.einsum for region in sparse.report.regions] == [
        "Y[i,k] = sum(j, A[i,j] * X[j,k]) * X[i,k]"
    ]
    probabilities, y = sparse(a, x)
    assert y.dtype == dtype
    exact = (a.double() @ x.double()) * x.double()
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    torch.testing.assert_close(probabilities, y.float().softmax(-1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sampled", "rows", "softmax"])
def test_programs_in_half_precision(name, dtype):
    forward, text = MODELS[name]
    made, a, x = model(forward), adjacency().to(dtype), torch.randn(N, K).to(dtype)
    sparse = sparsify.apply(made, recipe(), (a, x))
    assert [region.einsum for region in sparse.report.regions] == [text]
    found, exact = sparse(a, x), made(a.double(), x.double())
    assert found.dtype == dtype
    largest = float(exact.abs().max())
    # Sums are float32; their results, a row's sum above all, are rounded.
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=4 * torch.finfo(dtype).eps * largest)


@torch.no_grad()
def test_weights_that_are_made_once_beside_other_operands():
    w, s, v = weight(32, 24, density=0.02), torch.randn(32), torch.randn(32, 24)
    made = model(lambda self, x: (x @ (self.w * self.s[:, None]).T).tanh() + x @ self.v.T, w=w, s=s, v=v)
    _, texts = applied(made, (torch.randn(40, 24),), {"param:w": "csr"})
    assert texts == ["Y[i,k] = tanh(sum(j, X[i,j] * W[k,j])) + X1[i,k]"]


# A model of a sparse tensor of three modes, its program, and the shapes of the dense tensors.
TENSORS = {
    "matricized": (
        lambda self, a, x, y: torch.einsum("ijk,jr,kr->ir", a, x, y),
        "Y[i,k] = sum(j, f, A[i,j,f] * X[j,k] * X1[f,k])",
        ((30, 8), (40, 8)),
    ),
    "batch": (
        lambda self, a, x: torch.bmm((2 * a).relu(), x),
        "Y[i,k,l] = sum(j, relu(A[i,k,j] * 2) * X[i,j,l])",
        ((20, 40, 8),),
    ),
    "sampled": (
        lambda self, a, x, y: (a * torch.einsum("jr,kr->jk", x, y)).sum((1, 2)),
        "Y[i] = sum(j, f, g, A[i,j,f] * X[j,g] * X1[f,g])",
        ((30, 8), (40, 8)),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["csf", "coo", "dense, compressed, compressed", "torch"])
@pytest.mark.parametrize("name", TENSORS)
def test_sparse_inputs_of_more_modes(name, kind):
    forward, text, shapes = TENSORS[name]
    draw = torch.Generator().manual_seed(2)
    a = torch.randn(20, 30, 40, generator=draw) * (torch.rand(20, 30, 40, generator=draw) < 0.02)
    dense = [torch.randn(shape, generator=draw) for shape in shapes]
    made = model(forward).eval()
    given = a.to_sparse() if kind == "torch" else sparsify.tensor(a, sparsify.Format(kind, rank=3))
    rule = {"input:a": "csf" if kind == "torch" else kind}
    sparse = sparsify.apply(made, recipe(rule), (given, *dense), strict=True)
    dense = [tensor.requires_grad_() for tensor in dense]
    found, exact = sparse(given, *dense), made(a.double(), *(t.double() for t in dense))
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(found.sum(), dense), torch.autograd.grad(exact.sum(), dense)
    for have, want in zip(*grads, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert [region.einsum for region in sparse.report.regions] == [text]


def test_dense_inputs_are_read_for_changes_once_a_call():
    a, x = adjacency(1000, density=0.01), torch.randn(1000, 1)
    norms = model(lambda self, a, x: a.norm(dim=1, keepdim=True) * x)
    sparse, texts = applied(norms, (a, x))
    assert not texts and "to read a for changes" in sparse.report.dense[0].reason
    products = model(lambda self, a, x: (a.norm(dim=1, keepdim=True) * x, a @ x.expand(-1, 64)))
    assert applied(products, (a, x))[1]  # products gain more than that
    static = recipe()
    static["sparsify"][0]["static"] = True
    assert sparsify.apply(norms.eval(), static, (a, x)).report.regions


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, a, x: a * torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"),
        lambda self, a, x: (a.T @ x).norm(dim=1) + F.normalize(a @ x).sum(1),
    ],
    ids=["distances", "norms"],
)
def test_gradients_are_0_where_distances_and_norms_are(forward):
    a, x = adjacency(), torch.randn(N, K, generator=torch.Generator().manual_seed(3))
    a[:, 0] = a[0] = 0
    made = model(forward)
    sparse = sparsify.apply(made.eval(), recipe(), (a, x), strict=True)
    assert len(sparse.report.regions) == 1
    found, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    sparse(a, found).square().sum().backward()
    made(a.double(), exact).square().sum().backward()
    torch.testing.assert_close(found.grad.double(), exact.grad, rtol=1e-3, atol=1e-4)
