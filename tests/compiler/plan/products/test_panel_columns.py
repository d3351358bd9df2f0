"""Large products with CSR weights in panels of columns: conditions, results and gradients."""

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.products import panel_columns
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format
from tests.compiler.random_programs.operands import operand

LINEAR = "Y[b,t,n] = relu(sum(k, X[b,t,k] * W[n,k]) + c[n])"
LARGE = {"b": 2, "t": 256, "n": 64, "k": 576}
ENOUGH = 64 * 3 * 8


def twins_of(text, extents, stored):
    """Transposed or converted copies of operands in the steps of a program; operands other than W are dense."""
    names = {
        name: form
        for name, form in (("W", "csr"), ("X", "dense"), ("G", "dense"), ("c", "dense"))
        if f"{name}[" in text
    }
    ranks = {name: text.split(f"{name}[")[1].split("]")[0].count(",") + 1 for name in names}
    given = {
        name: operand(form if name == "W" else ", ".join(["dense"] * ranks[name]))
        for name, form in names.items()
    }
    program = name_extents(declare(parse(text), given))
    known = {}
    for name in names:
        axes = text.split(f"{name}[")[1].split("]")[0].split(",")
        known |= {e: extents[axis] for e, axis in zip(program.declaration(name).extents, axes, strict=True)}
    return [
        twin for step in steps(program, Sizes(known, {"W": stored})) for twin in getattr(step, "twins", ())
    ]


@pytest.mark.parametrize(
    ("text", "changed", "stored", "levels"),
    [
        (LINEAR, {}, ENOUGH, "j/192: dense, i: dense, j%192: compressed"),
        ("Y[t,k] = sum(n, G[t,n] * W[n,k])", {"n": 576, "k": 64}, ENOUGH, "i/192: dense, j: dense, i%192: compressed"),
        (LINEAR, {}, 64 * 6 * 16, "j/96: dense, i: dense, j%96: compressed"),  # many entries a row
        (LINEAR, {}, ENOUGH - 1, None),  # too few entries a panel
        (LINEAR, {"t": 255}, ENOUGH, None),  # too few rows
        (LINEAR, {"k": 575}, ENOUGH, None),  # too few columns
        ("Y[n,k] = sum(j, W[n,j] * X[j,k])", {"n": 64, "j": 576, "k": 256}, ENOUGH, None),  # lanes along k
        ("Y[t,n] = max(k, X[t,k] * W[n,k])", {}, ENOUGH, None),
    ],
)  # fmt: skip
def test_which_products_have_panels(text, changed, stored, levels):
    found = twins_of(text, {**LARGE, **changed}, stored)
    panels = [str(twin.format) for twin in found if panel_columns.WHY in twin.why]
    assert panels == ([] if levels is None else [levels])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [256, 275])
def test_results_and_gradients(dtype, tokens):
    draw = torch.Generator().manual_seed(0)
    mask = torch.rand(96, 601, generator=draw) < 0.1
    mask[3], mask[:, 200:390] = False, False  # a row and a panel without entries
    dense = torch.where(mask, torch.randn(96, 601, generator=draw), 0).to(dtype)
    X, c = torch.randn(2, tokens, 601, generator=draw).to(dtype), torch.randn(96, generator=draw).to(dtype)
    seed = torch.randn(2, tokens, 96, generator=draw).to(dtype)
    W = sparsify.tensor(dense, "csr").requires_grad_()
    given = [X.clone().requires_grad_(), c.clone().requires_grad_()]
    found = sparsify.evaluate(LINEAR, X=given[0], W=W, c=given[1])
    found.backward(seed)
    exact = [value.double().requires_grad_() for value in (X, c, dense)]
    expected = torch.relu(exact[0] @ exact[2].T + exact[1])
    expected.backward(seed.double())
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype is torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    for one, other in zip(given, exact, strict=False):
        torch.testing.assert_close(one.grad.double(), other.grad, **tolerance)
    torch.testing.assert_close(W.grad.to_dense().double(), torch.where(mask, exact[2].grad, 0), **tolerance)


@pytest.mark.parametrize("form", ["nm(2, 4)", "nm(1, 5, group=4)"])
def test_entries_in_groups_are_read_in_panels(form):
    text = "Y[t,o] = sum(k, X[t,k] * W[o,k])"
    dense = torch.zeros(60, 103)
    dense[::2, ::20], dense[1::2, 2::20] = 1.5, -2.0
    dense[:, 100], dense[:, 102] = 0.0, torch.arange(60.0)
    if "group" in form:
        dense = dense[::4].repeat_interleave(4, 0)
    W, X = sparsify.tensor(dense, form), torch.randn(16, 103)
    kernel = sparsify.compiler.evaluate.evaluate_kernel(text, X=X, W=W)
    assert any("W_panels" in str(twin) for step in kernel.steps for twin in getattr(step, "twins", ()))
    torch.testing.assert_close(sparsify.evaluate(text, X=X, W=W), X @ dense.T, rtol=1e-4, atol=1e-4)
    few = sparsify.evaluate(text, X=X[:3], W=W)
    torch.testing.assert_close(few, X[:3] @ dense.T, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "m", "group"), [(2, 4, 16), (1, 10, 2)])
@pytest.mark.parametrize("text", ["Y[t,o] = sum(k, X[t,k] * W[o,k])", "Y[t,o] = sum(k, X[t,k] * W[k,o])"])
def test_rows_listed_in_blocks_are_read_in_panels(n, m, group, text):
    draw = torch.Generator().manual_seed(2)
    kept = sparsify.sparsifiers.PerBlockFraction(n, m, group=group)
    weight = torch.randn(60, 120, generator=draw)
    form = f"i/{m}: dense, j: dense, i%{m}: grouped({n})"
    if "W[k,o]" in text:
        form = f"j/{m}: dense, i: dense, j%{m}: grouped({n})"
    mask = kept.mask(weight)
    dense = torch.where(mask, weight, 0)
    given = dense.T.contiguous() if "W[k,o]" in text else dense
    W = sparsify.tensor(given, form).requires_grad_()
    X = torch.randn(40, 120, generator=draw, requires_grad=True)
    kernel = sparsify.compiler.evaluate.evaluate_kernel(text, X=X.detach(), W=W.detach())
    assert any("W_panels" in str(twin) for step in kernel.steps for twin in getattr(step, "twins", ()))
    found = sparsify.evaluate(text, X=X, W=W)
    torch.testing.assert_close(found, X @ dense.T, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    exact = [X.detach().clone().requires_grad_(), dense.clone().requires_grad_()]
    (exact[0] @ exact[1].T).square().sum().backward()
    torch.testing.assert_close(X.grad, exact[0].grad, rtol=1e-3, atol=1e-3)
    gradient = W.grad.to_dense()
    gradient = gradient.T if "W[k,o]" in text else gradient
    torch.testing.assert_close(gradient, torch.where(mask, exact[1].grad, 0), rtol=1e-3, atol=1e-3)


def test_values_of_another_step_are_read():
    draw = torch.Generator().manual_seed(1)
    dense = torch.where(torch.rand(64, 576, generator=draw) < 0.2, torch.randn(64, 576, generator=draw), 0)
    W, X = sparsify.tensor(dense, "csr"), torch.randn(256, 576, generator=draw)
    for factor in (1.0, -2.0):
        scaled = W * factor
        found = sparsify.evaluate("Y[t,n] = sum(k, X[t,k] * W[n,k])", X=X, W=scaled)
        torch.testing.assert_close(found, X @ (factor * dense).T, rtol=1e-4, atol=1e-4)


SAMPLED = "D[n,k] = stored(W[n,k]) * sum(t, G[t,n] * X[t,k])"
GRADIENT = {"t": 256, "n": 64, "k": 576}


@pytest.mark.parametrize(
    ("text", "changed", "stored", "levels"),
    [
        (SAMPLED, {}, ENOUGH, "j/192: dense, i: dense, j%192: compressed"),
        (SAMPLED, {}, 64 * 6 * 16, "j/96: dense, i: dense, j%96: compressed"),
        (SAMPLED, {}, ENOUGH - 1, None),
        (SAMPLED, {"t": 255}, ENOUGH, None),
        (SAMPLED, {"k": 575}, ENOUGH, None),
        ("D[n,k] = W[n,k] * max(t, G[t,n] * X[t,k])", {}, ENOUGH, None),
        ("D[n,k] = W[n,k] * sum(t, G[t,n] * X[t,n])", {}, ENOUGH, None),
    ],
)
def test_which_sampled_products_have_panels(text, changed, stored, levels):
    names = {name: "csr" if name == "W" else "dense, dense" for name in "WGX"}
    program = name_extents(
        declare(parse(text), {n: operand(f) for n, f in names.items()}, formats={"D": Format("csr")})
    )
    extents = {**GRADIENT, **changed}
    known = {}
    for name in names:
        axes = text.split(f"{name}[")[1].split("]")[0].split(",")
        known |= {e: extents[axis] for e, axis in zip(program.declaration(name).extents, axes, strict=True)}
    step, *converted = steps(program, Sizes(known, {"W": stored}))
    formats = [str(twin.format) for twin in step.twins if panel_columns.WHY in twin.why]
    assert formats == ([] if levels is None else [levels])
    assert [panel_columns.WHY in made.why for made in converted] == [True] * len(formats)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(64, 576), (67, 601)])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_sampled_products_in_panels(rows, columns, share, dtype):
    generator = torch.Generator().manual_seed(rows)
    mask = torch.rand(rows, columns, generator=generator) < share
    mask[3] = False
    weight = torch.where(mask, torch.randn(rows, columns, generator=generator), 0).to(dtype)
    g, x = (torch.randn(260, n, generator=generator).to(dtype) for n in (rows, columns))
    stored = sparsify.tensor(weight, "csr")
    found = sparsify.evaluate(SAMPLED, G=g, X=x, W=stored, format="csr")
    expected = torch.where(mask, g.double().T @ x.double(), 0)
    assert found._pattern is stored._pattern
    torch.testing.assert_close(
        found.to_dense().double(), expected, rtol=1e-4, atol=1e-3 if dtype is torch.float32 else 1e-9
    )
    by_values = sparsify.evaluate(
        "D[n,k] = W[n,k] * sum(t, G[t,n] * X[t,k])", G=g, X=x, W=stored, format="csr"
    )
    torch.testing.assert_close(
        by_values.to_dense().double(), expected * weight.double(), rtol=1e-4, atol=1e-2
    )
