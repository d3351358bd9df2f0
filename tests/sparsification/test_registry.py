"""Formats, operators, gradients and sparsifiers of users: patterns, the order of dispatch, messages and gradients."""

import copy
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

import sparsify
from sparsify import Parts, sparsifiers
from sparsify.errors import FormatError, SparsifierError, UnsupportedOperatorError
from sparsify.sparsification.registered import dispatch, layout, registry
from sparsify.sparsification.registered.operator_name import argument_names, arguments, canonical, written
from sparsify.sparsification.registered.user_tensor import UserTensor, wrap


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def halved(*shape, seed=0):
    tensor = random(*shape, seed=seed)
    return torch.where(tensor > 0, tensor, 0)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Registrations and warnings of one test alone."""
    for name in ("operators", "gradients"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(registry, "sparsifiers", [])
    monkeypatch.setattr(dispatch, "_warned", set())


class Scipy:
    """A layout over scipy's arrays, without a lossless conversion."""

    def __init__(self, data):
        self.data = data

    @classmethod
    def from_dense(cls, tensor):
        return cls(scipy.sparse.csc_array(tensor.numpy()))

    def to_dense(self):
        return torch.from_numpy(self.data.toarray())


class Lossless(Scipy):
    """The same, which becomes a `SparseTensor`."""

    def to_sparse(self):
        return sparsify.tensor(self.data, "csc")


sparsify.register_format(Scipy)
sparsify.register_format(name="lossless")(Lossless)


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("csr", ["csr"], ["csc", "coo"]),
        ("csr | coo", ["csr", "coo"], ["csc"]),
        ("nm(*)", ["nm(2, 4)", "nm(1, 8)", "nm(2, 4, group=4)"], ["csr", "ell"]),
        ("nm(2, *)", ["nm(2, 4)", "nm(2, 8)"], ["nm(1, 4)"]),
        ("bcsr(*, 4)", ["bcsr(2, 4)", "bcsr(4, 4)"], ["bcsr(4, 2)", "csr"]),
        ("bcsr(*)", ["bcsr(2, 4)"], ["csr"]),
        (sparsify.Format("dense, compressed"), ["csr"], ["csc"]),
        (sparsify.SparseTensor, ["csr", "coo", "nm(2, 4)"], []),
        ("*", ["csr", "nm(2, 4)"], []),
    ],
)
def test_patterns(pattern, fitting, other):
    dense = torch.zeros(8, 8)
    pattern = layout.require_pattern(pattern)
    for format in fitting:
        assert layout.fits(sparsify.tensor(dense, format), pattern) is not None
    for format in other:
        assert layout.fits(sparsify.tensor(dense, format), pattern) is None
    assert (layout.fits(dense, pattern) is not None) == (pattern == "*")
    assert layout.fits(None, None) is not None and layout.fits(dense, None) is None
    assert layout.fits(dense, torch.Tensor) == layout.EXACT


def test_the_closest_pattern_wins():
    A, x = sparsify.tensor(halved(8, 8), "csr"), random(8, 3, seed=1)
    names = []

    def register(name, inputs, priority=0):
        @sparsify.register_operator(torch.mm, inputs=inputs, priority=priority)
        def product(ctx, inputs, output_sparsifiers):
            names.append(name)
            return inputs[0].to_dense() @ inputs[1]

    register("any", ("*", "*"))
    register("exact", ("csr", torch.Tensor))
    register("sparse", (sparsify.SparseTensor, torch.Tensor))
    want = A.to_dense() @ x
    torch.testing.assert_close(torch.mm(A, x), want)
    assert names == ["exact"]
    torch.mm(A.to(format="coo"), x)
    assert names == ["exact", "sparse"]
    register("later", ("csr", torch.Tensor))
    A.mm(x)  # methods are the same operator
    register("first", ("*", "*"), priority=1)
    torch.mm(A, mat2=x)  # and arguments by name
    assert names == ["exact", "sparse", "later", "first"]
    text = sparsify.explain(torch.mm, A, x)
    assert "way: user:" in text and text.count("fits less closely") == 4 and text.count("taken") == 1


def test_an_implementation_may_call_what_it_replaces():
    A, x, called = sparsify.tensor(halved(8, 8), "csr"), random(8, 3, seed=1), []

    @sparsify.register_operator(torch.mm, inputs=("csr", torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        called.append(len(inputs))
        return torch.mm(*inputs)  # the compiler's

    for _ in range(2):
        torch.testing.assert_close(torch.mm(A, x), A.to_dense() @ x)
    assert called == [2, 2]

    @sparsify.register_sparsifier(sparsifier=sparsifiers.ScalarFraction, output="csr")
    def doubled(sparsifier, tensor):
        return sparsify.sparsify(2 * tensor, sparsifier, "csr")

    found = sparsify.sparsify(x, sparsifiers.ScalarFraction(0.5), "csr")
    torch.testing.assert_close(found.to_dense(), 2 * sparsifiers.ScalarFraction(0.5)(x).to_dense())


def test_arguments_in_order():
    assert canonical(torch.Tensor.__matmul__) is torch.matmul and written(torch.mm) == "torch.mm"
    assert written(torch.nn.functional.linear) == "torch.nn.functional.linear"
    assert argument_names(torch.add) == ("input", "other", "alpha", "out")
    assert arguments(torch.add, (1,), {"alpha": 3, "other": 2}) == (1, 2, 3)
    assert arguments(torch.nn.functional.linear, (1, 2), {"bias": 3}) == (1, 2, 3)
    assert arguments(torch.mm, (), {"input": 1, "mat2": 2}) == (1, 2)


def test_methods_that_write_are_no_functions_that_return():
    """`A.mul_`, `A += B` and a step of SGD write into their tensor where the operator is registered, too."""
    dense = halved(4, 4)

    @sparsify.register_operator(torch.mul, inputs=("csr", None))
    def multiply(ctx, inputs, output_sparsifiers):
        return inputs[0] * inputs[1]

    @sparsify.register_operator(torch.add, inputs=("csr", "csr"))
    def add(ctx, inputs, output_sparsifiers):
        return inputs[0] + inputs[1]

    A, B = sparsify.tensor(dense, "csr"), sparsify.tensor(dense, "csr")
    same = A
    A.mul_(3.0)
    A += B
    assert A is same
    torch.testing.assert_close(A.to_dense(), 4 * dense)
    weight = torch.nn.Parameter(sparsify.tensor(dense, "csr"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.to_dense().square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(weight.to_dense().detach(), 0.8 * dense)


def test_signs_of_whole_numbers():
    assert canonical(torch.Tensor.__and__) is torch.bitwise_and
    assert canonical(torch.Tensor.__iadd__) is torch.Tensor.__iadd__
    assert canonical(torch.Tensor.add_) is torch.Tensor.add_


def test_writes_into_tensors_in_formats_of_users():
    """In-place methods, `out=`, optimizers, loading and `.data` change what the tensor stores."""
    dense = halved(3, 3)
    u = sparsify.sparsify(dense, sparsifiers.KeepAll(), Scipy)
    same = u
    u.add_(1.0)
    u *= 2.0
    assert u is same
    torch.testing.assert_close(u.to_dense(), 2 * (dense + 1))
    torch.mm(dense, dense, out=u)
    torch.testing.assert_close(u.to_dense(), dense @ dense)
    with pytest.raises(UnsupportedOperatorError, match="a write into a part"):
        u[0] = 1.0
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(sparsify.sparsify(dense, sparsifiers.KeepAll(), Scipy))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.weight.to_dense().square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(module.weight.to_dense().detach(), 0.8 * dense)
    module.load_state_dict({"weight": dense})
    torch.testing.assert_close(module.weight.to_dense().detach(), dense)
    module.weight.data.mul_(3.0)
    torch.testing.assert_close(module.weight.to_dense().detach(), 3 * dense)


def test_copies_of_tensors_in_formats_of_users():
    dense = halved(3, 3)
    u = sparsify.sparsify(dense, sparsifiers.KeepAll(), Scipy)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(u)
    copied = copy.deepcopy(module)
    cloned = u.clone()
    assert isinstance(cloned, UserTensor) and isinstance(copied.weight, UserTensor)
    assert isinstance(copied.weight, torch.nn.Parameter) and copied.weight.requires_grad
    u.zero_()
    for kept in (cloned, copied.weight.detach()):
        torch.testing.assert_close(kept.to_dense(), dense)


def test_lists_and_names_of_arguments():
    dense = halved(3, 3)
    for form in ("lossless", Scipy):
        u = sparsify.sparsify(dense, sparsifiers.KeepAll(), form)
        for operator in (torch.cat, torch.stack):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = operator([u, u])
            found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
            torch.testing.assert_close(found, operator([dense, dense]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found in (torch.sum(u, dim=0), u.sum(dim=0)):
                torch.testing.assert_close(found.to_dense(), dense.sum(0))


FRESH = """
import torch, sparsify
A = sparsify.sparsify(torch.eye(2), sparsify.sparsifiers.ScalarThreshold(0.5), "csr")
@sparsify.register_format
class Plain:
    def __init__(self, data): self.data = data
    @staticmethod
    def from_dense(tensor): return Plain(tensor.clone())
    def to_dense(self): return self.data
u = sparsify.sparsify(torch.eye(2), sparsify.sparsifiers.KeepAll(), Plain)
{first}
@sparsify.register_operator(torch.mm, inputs=("csr", torch.Tensor))
def product(ctx, inputs, output_sparsifiers): return torch.full((2, 1), 7.0)
assert torch.mm(A, torch.ones(2, 1)).tolist() == [[7.0], [7.0]]
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", ["", "assert (u + 1).sum() == 6"])
def test_registrations_of_a_fresh_process(first):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FRESH.format(first=first)], check=True)


def test_the_order_of_dispatch():
    """The user's implementation, the compiler, a lossless conversion, densely with one warning."""
    dense, x = halved(6, 8), random(8, 3, seed=1)
    A = sparsify.tensor(dense, "csr")
    assert dispatch.choose(torch.mm, (A, x)).way == "compiler"
    assert dispatch.choose(torch.mm, (dense, x)).way == "torch"
    L, S = (sparsify.sparsify(dense, sparsifiers.KeepAll(), form) for form in ("lossless", Scipy))
    assert (dispatch.choose(torch.mm, (L, x)).way, dispatch.choose(torch.mm, (S, x)).way) == (
        "converted",
        "dense",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.mm(L, x), dense @ x)
    text = r"torch.mm of \(Scipy, torch.Tensor\) has no implementation; it is computed densely"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        found = torch.mm(S, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(S.mm(x), found)
    torch.testing.assert_close(found, dense @ x)
    assert len(caught) == 1
    assert "@sparsify.register_operator(torch.mm, inputs=(Scipy, torch.Tensor))" in str(caught[0].message)
    with sparsify.strict(), pytest.raises(UnsupportedOperatorError, match="register one"):
        torch.mm(S, x)

    @sparsify.register_operator(torch.mm, inputs=(Scipy, torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        return torch.from_numpy(inputs[0].wrapped.data @ inputs[1].numpy())

    with sparsify.strict():
        torch.testing.assert_close(torch.mm(S, x), dense @ x)


def test_the_cheapest_conversion_to_an_implementation():
    """An operator that the compiler lacks goes to the implementation that least entries move for."""
    A, B = (
        sparsify.tensor(halved(8, 8), "coo"),
        sparsify.tensor(halved(8, 8, seed=3)[:, :8] * torch.eye(8), "coo"),
    )
    called = []

    @sparsify.register_operator(torch.hypot, inputs=("csr", "csr"))
    def both(ctx, inputs, output_sparsifiers):
        called.append([i.format for i in inputs])
        return torch.hypot(inputs[0].to_dense(), inputs[1].to_dense())

    @sparsify.register_operator(torch.hypot, inputs=("coo", "csr"))
    def second(ctx, inputs, output_sparsifiers):
        called.append([i.format for i in inputs])
        return torch.hypot(inputs[0].to_dense(), inputs[1].to_dense())

    @sparsify.register_operator(torch.hypot, inputs=("nm(1, 4)", "coo"))
    def lossy(ctx, inputs, output_sparsifiers):
        raise AssertionError("n:m does not hold any entries")

    assert not dispatch._is_compiled(torch.hypot)
    torch.testing.assert_close(torch.hypot(A, B), torch.hypot(A.to_dense(), B.to_dense()))
    assert called == [[sparsify.Format("coo", rank=2), sparsify.Format("csr")]]
    assert "argument 1 becomes 'csr' without loss" in sparsify.explain(torch.hypot, A, B)


def test_gradients_of_implementations():
    dense, x = halved(6, 8), random(8, 3, seed=1).requires_grad_()
    weight = dense.clone().requires_grad_()
    S = sparsify.sparsify(weight, sparsifiers.KeepAll(), Scipy)

    @sparsify.register_operator(torch.mm, inputs=(Scipy, torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        assert [type(s) for s in output_sparsifiers] == [sparsifiers.KeepAll]
        ctx.save_for_backward(*inputs)
        return torch.from_numpy(inputs[0].wrapped.data @ inputs[1].detach().numpy())

    factor = random(6, 3, seed=2)
    with pytest.raises(
        UnsupportedOperatorError, match=r"@sparsify.register_backward\(torch.mm, inputs=\(Scipy, torch"
    ):
        (torch.mm(S, x) * factor).sum().backward()

    @sparsify.register_backward(torch.mm, inputs=(Scipy, torch.Tensor), grad_outputs=(torch.Tensor,))
    def gradient(ctx, grad_outputs, input_sparsifiers):
        A, x = ctx.saved_tensors
        return grad_outputs[0] @ x.T, torch.from_numpy(A.wrapped.data.T @ grad_outputs[0].numpy())

    S = sparsify.sparsify(weight, sparsifiers.KeepAll(), Scipy)
    (torch.mm(S, x) * factor).sum().backward()
    torch.testing.assert_close(x.grad, dense.T @ factor)
    torch.testing.assert_close(weight.grad, factor @ x.detach().T)


def test_gradients_of_sparse_parameters():
    """The gradient of a `SparseTensor` lies on its pattern, also where a user computes it densely."""
    A = sparsify.tensor(halved(6, 8), "csr").requires_grad_()
    x = random(8, 3, seed=1)

    @sparsify.register_operator(torch.mm, inputs=("csr", torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        ctx.save_for_backward(inputs[1])
        return inputs[0].detach().to_dense() @ inputs[1]

    @sparsify.register_backward(torch.mm, inputs=("csr", torch.Tensor))
    def gradient(ctx, grad_outputs, input_sparsifiers):
        return grad_outputs[0] @ ctx.saved_tensors[0].T, None

    torch.mm(A, x).square().sum().backward()
    assert A.grad.pattern.equals(A.pattern)
    dense = halved(6, 8).requires_grad_()
    (dense @ x).square().sum().backward()
    torch.testing.assert_close(A.grad.to_dense(), torch.where(dense > 0, dense.grad, 0))


def test_each_result_that_torch_cannot_differentiate_says_so():
    weight = torch.nn.Parameter(sparsify.tensor(halved(6, 8), "csr"))

    @sparsify.register_operator(torch.topk, inputs=("csr", None))
    def selected(ctx, inputs, output_sparsifiers):
        return torch.topk(inputs[0].detach().to_dense(), inputs[1])

    values, places = torch.topk(weight, 2)
    assert values.requires_grad and not places.requires_grad
    with pytest.raises(UnsupportedOperatorError, match=r"@sparsify.register_backward\(torch.topk"):
        values.sum().backward()


def test_second_gradients_of_sparsified_gradients_are_refused():
    multiply = sparsify.sparsified(torch.mul, None, Parts(external=sparsifiers.KeepAll(), format="csr"))
    x = random(2, 2).requires_grad_()
    (first,) = torch.autograd.grad(multiply(x, x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(first.detach(), 4 * x.detach() ** 3)
    with pytest.raises(UnsupportedOperatorError, match="a second gradient"):
        torch.autograd.grad(first.sum(), x)


def test_implementations_that_torch_differentiates():
    A = sparsify.tensor(halved(6, 8), "csr")
    x = random(8, 3, seed=1).requires_grad_()

    @sparsify.register_operator(torch.mm, inputs=("csr", torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        return inputs[0].to_dense() @ inputs[1]

    torch.mm(A, x).sum().backward()
    torch.testing.assert_close(x.grad, A.to_dense().T @ torch.ones(6, 3, dtype=torch.float64))


class Alternate:
    """A sparsifier of a user that is parameters alone."""

    def __init__(self, first):
        self.first = first


def test_implementations_of_sparsifiers():
    tensor = random(4, 6)
    with pytest.raises(
        SparsifierError, match=r"@sparsify.register_sparsifier\(sparsifier=Alternate, input=torch.T"
    ):
        sparsify.sparsify(tensor, Alternate(0), "csr")
    assert sparsify.register_sparsifier(Alternate) is Alternate

    @sparsify.register_sparsifier(sparsifier=Alternate, input=torch.Tensor, output="csr | coo")
    def alternate(sparsifier, tensor):
        made = torch.zeros_like(tensor)
        made[:, sparsifier.first :: 2] = tensor[:, sparsifier.first :: 2]
        return made

    @sparsify.register_sparsifier(sparsifier=Alternate, output=Scipy)
    def alternate_columns(sparsifier, tensor):
        return Scipy.from_dense(alternate(sparsifier, tensor.detach()))

    want = torch.zeros(4, 6, dtype=torch.float64)
    want[:, 1::2] = tensor[:, 1::2]
    for format in ("csr", "coo", Scipy, "Scipy"):
        found = sparsify.sparsify(tensor, Alternate(1), format)
        torch.testing.assert_close(found.to_dense(), want)
    assert isinstance(found, UserTensor) and found.wrapped_tensor.data.nnz == 12
    given = tensor.clone().requires_grad_()
    sparsify.sparsify(given, Alternate(1), Scipy).to_dense().sum().backward()
    torch.testing.assert_close(given.grad, (want != 0).double())
    with pytest.raises(SparsifierError, match="Alternate"):
        sparsify.sparsify(tensor, Alternate(1), "csc")


def test_an_implementation_is_taken_before_the_mask():
    @sparsify.register_sparsifier(sparsifier=sparsifiers.ScalarFraction, output="csr")
    def none(sparsifier, tensor):
        return sparsify.tensor(torch.zeros_like(tensor), "csr")

    tensor = random(4, 6)
    assert sparsify.sparsify(tensor, sparsifiers.ScalarFraction(0.5), "csr").nnz == 0
    assert sparsify.sparsify(tensor, sparsifiers.ScalarFraction(0.5), "csc").nnz == 12


def test_parts_of_results():
    a, b = random(6, 8), random(6, 8, seed=1)
    own = sparsifiers.ScalarThreshold(0.5)
    kept = torch.where((a + b).abs() >= 0.5, a + b, 0)
    for parts in (
        Parts(inline=own, temporary="coo", format="csr"),
        Parts(external=own, format="csr"),
        (own, torch.Tensor, sparsifiers.KeepAll(), "csr"),
        {"external": own, "format": "csr"},
    ):
        found = sparsify.sparsified(torch.add, parts)(a, b)
        assert found.format == sparsify.Format("csr")
        torch.testing.assert_close(found.to_dense(), kept)
    plain = sparsify.sparsified(torch.add)(a, b, alpha=2)
    torch.testing.assert_close(plain, a + 2 * b)
    both = sparsify.sparsified(torch.add, (own, torch.Tensor, sparsifiers.ScalarFraction(0.75), "coo"))(a, b)
    assert both.nnz == 12
    values, places = sparsify.sparsified(torch.max, [Parts(external=own, format="coo"), None])(a, 1)
    torch.testing.assert_close(
        torch.as_tensor(values.to_dense()), torch.where(a.amax(1).abs() >= 0.5, a.amax(1), 0)
    )
    assert torch.equal(places, a.argmax(1))


def test_an_implementation_applies_the_inline_sparsifier():
    a, b = random(6, 8), random(6, 8, seed=1)

    @sparsify.register_operator(
        torch.add, inputs=(torch.Tensor, torch.Tensor), outputs=[(sparsifiers.RandomFraction, "coo")]
    )
    def add(ctx, inputs, output_sparsifiers):
        (own,) = output_sparsifiers
        return sparsify.tensor(torch.where(own.mask(inputs[0]), 7.0, 0), "coo")

    parts = Parts(inline=sparsifiers.RandomFraction(0.5), temporary="coo", format="csr")
    found = sparsify.sparsified(torch.add, parts)(a, b)
    assert set(found.values().tolist()) == {7.0} and found.format == sparsify.Format("csr")
    torch.testing.assert_close(
        sparsify.sparsified(torch.add)(a, b), a + b
    )  # all entries: not this implementation


def test_parts_of_gradients():
    a, b, factor = random(6, 8).requires_grad_(), random(6, 8, seed=1), random(6, 8, seed=2)
    own = sparsifiers.ScalarFraction(0.75)
    add = sparsify.sparsified(torch.add, None, Parts(external=own, format="csr"))
    (add(a, b) * factor).sum().backward()
    torch.testing.assert_close(a.grad, torch.where(own.mask(factor), factor, 0))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sparsify.register_operator("mm", inputs=()), SparsifierError, "a function, torch.mm"),
        (lambda: sparsify.register_operator(torch.mm, inputs="csr"), SparsifierError, "a pattern for each"),
        (
            lambda: sparsify.register_operator(torch.mm, inputs=("crs",)),
            FormatError,
            "no format is called 'crs'",
        ),
        (
            lambda: sparsify.register_operator(torch.mm, inputs=(np.ndarray,)),
            SparsifierError,
            "a class of register",
        ),
        (
            lambda: sparsify.register_operator(torch.mm, inputs=("csr",), priority="high"),
            SparsifierError,
            "whole number",
        ),
        (
            lambda: sparsify.register_operator(
                torch.mm, inputs=(), outputs=((sparsifiers.KeepAll(), "csr"),)
            ),
            SparsifierError,
            "a class, sparsifiers.RandomFraction",
        ),
        (lambda: sparsify.register_format(3), SparsifierError, "a class; it is a decorator"),
        (
            lambda: sparsify.register_format(type("None_", (), {})),
            SparsifierError,
            "without from_dense and to_dense",
        ),
        (lambda: sparsify.register_format(name="csr")(Scipy), SparsifierError, "no other format has"),
        (lambda: sparsify.register_sparsifier(sparsifier=None), SparsifierError, "a class of sparsifiers"),
        (lambda: wrap(object()), SparsifierError, "@sparsify.register_format above class object"),
        (lambda: sparsify.sparsified(3), SparsifierError, "a function, torch.add"),
        (lambda: sparsify.sparsified(torch.add, (1, 2)), SparsifierError, "the parts"),
    ],
)
def test_mistakes(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_results_that_are_none():
    A = sparsify.tensor(halved(4, 4), "csr")

    @sparsify.register_operator(torch.mm, inputs=("csr", torch.Tensor))
    def product(ctx, inputs, output_sparsifiers):
        return "nothing"

    with pytest.raises(SparsifierError, match=r"the implementation of torch.mm returned a str"):
        torch.mm(A, random(4, 2))
    with pytest.raises(SparsifierError, match="2 results and parts for 1"):
        sparsify.sparsified(torch.max)(random(3, 3), 1)


@pytest.mark.parametrize("format", ["csr", "coo"], ids=["as registered", "converted"])
def test_arguments_that_a_call_does_not_give_are_none(format):
    """Of plain calls of torch, too."""

    @sparsify.register_operator(torch.nn.functional.linear, inputs=("csr", torch.Tensor, None))
    def product(ctx, inputs, output_sparsifiers):
        rows, weight, bias = inputs
        assert bias is None
        return rows.to_dense() @ weight.T

    @sparsify.register_operator(torch.cumsum, inputs=("csr", None, None))
    def sums(ctx, inputs, output_sparsifiers):
        rows, mode, _ = inputs
        return rows.to_dense().cumsum(mode)

    rows, weight = halved(3, 4), random(5, 4, seed=1)
    given = sparsify.tensor(rows, format)
    torch.testing.assert_close(torch.nn.functional.linear(given, weight), rows @ weight.T)
    torch.testing.assert_close(torch.cumsum(given, 0), rows.cumsum(0))
