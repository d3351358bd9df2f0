"""`SparseTensor` as a tensor: training, copying, saving, compiling, and what it refuses."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch import nn

from sparsify.api import einsum
from sparsify.errors import FormatError, InvalidTensorError, ShapeError, UnsupportedOperatorError
from sparsify.options import strict
from sparsify.storage import validate
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.tensor import SparseTensor, operators
from tests.storage.generate import MATRIX_FORMATS, Case

OPTIMIZERS = {
    "sgd": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=foreach),
    "nesterov": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=foreach),
    "adam": lambda p, foreach: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, foreach=foreach),
    "adamw": lambda p, foreach: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=foreach),
    "adagrad": lambda p, foreach: torch.optim.Adagrad(p, lr=0.1, foreach=foreach),
    "rmsprop": lambda p, foreach: torch.optim.RMSprop(p, lr=0.1, centered=True, foreach=foreach),
}


class Layer(nn.Module):
    """A linear layer with a sparse weight."""

    def __init__(self, form="csr", fill=0):
        super().__init__()
        weight = Case(form, (7, 9), "random").dense(torch.float32, fill)
        self.weight = nn.Parameter(tensor(weight, form, fill=fill))
        self.bias = nn.Parameter(torch.full((7,), 0.5))

    def forward(self, x):
        return x @ self.weight.to_dense().T + self.bias


def test_attributes():
    stored = tensor(torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]))
    assert isinstance(stored, torch.Tensor)
    assert stored.shape == (3, 2) and stored.dtype == torch.float32 and stored.device.type == "cpu"
    assert stored.nnz == 2 and stored.density == pytest.approx(1 / 3) and stored.fill == 0
    assert (
        stored.format == Format("csr") and stored.dim() == 2 and stored.numel() == 6 and stored.size(1) == 2
    )
    assert "dense, compressed; shape [3, 2], 2 stored, torch.float32" in repr(stored)
    assert stored.with_fill(1.0).to_dense().tolist() == [[1, 2], [3, 1], [1, 1]]
    assert stored.with_fill(1.0).values().data_ptr() == stored.values().data_ptr()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", MATRIX_FORMATS)
def test_values_to_tensor_to_dense_is_differentiable(form):
    stored = Case(form, (3, 5), "random").stored()
    pattern = stored.pattern
    values = stored.values().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: SparseTensor(pattern, v).to_dense(), values)
    assert torch.autograd.gradcheck(lambda v: SparseTensor(pattern, v).values() ** 2, values)
    assert torch.autograd.gradcheck(lambda v: (SparseTensor(pattern, v) * 3).T.to_dense(), values)
    assert torch.autograd.gradgradcheck(lambda v: SparseTensor(pattern, v).to_dense() ** 3, values)


def test_the_gradient_lies_on_the_pattern():
    leaf = Case("csr", (7, 9), "random").stored().requires_grad_()
    weights = torch.rand(7, 9, dtype=torch.float64)
    (leaf.to_dense() * weights).sum().backward()
    assert isinstance(leaf.grad, SparseTensor) and leaf.grad.pattern is leaf.pattern
    assert torch.equal(leaf.grad.values(), weights[tuple(leaf.coordinates())])
    (leaf.to_dense() * weights).sum().backward()
    assert torch.equal(leaf.grad.values(), 2 * weights[tuple(leaf.coordinates())])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_training_the_values(name, foreach):
    layer = Layer("bcsr(2, 3)")
    pattern = layer.weight.pattern
    values = nn.Parameter(layer.weight.values().detach().clone())
    bias = nn.Parameter(layer.bias.detach().clone())
    sparse = OPTIMIZERS[name](layer.parameters(), foreach)
    plain = OPTIMIZERS[name]([values, bias], foreach)
    random = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.rand(4, 9, generator=random)
        sparse.zero_grad()
        plain.zero_grad()
        first = (layer(x) ** 2).sum()
        second = ((x @ SparseTensor(pattern, values).to_dense().T + bias) ** 2).sum()
        first.backward()
        second.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0, foreach=foreach)
        nn.utils.clip_grad_norm_([values, bias], 1.0, foreach=foreach)
        sparse.step()
        plain.step()
        assert torch.allclose(first, second)
    assert torch.allclose(layer.weight.values(), values, atol=1e-6)
    assert layer.weight.fill == 0 and layer.weight.pattern is pattern
    assert all(
        s.pattern is pattern for s in sparse.state[layer.weight].values() if isinstance(s, SparseTensor)
    )


def test_training_resumes_from_a_checkpoint():
    layer, x = Layer(), torch.rand(4, 9)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

    def step(model, algorithm):
        algorithm.zero_grad()
        (model(x) ** 2).sum().backward()
        algorithm.step()

    step(layer, optimizer)
    file = io.BytesIO()
    torch.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = Layer()
    other.load_state_dict(saved["model"])
    resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
    resumed.load_state_dict(saved["optimizer"])
    step(layer, optimizer)
    step(other, resumed)
    assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)


@pytest.mark.parametrize("form", MATRIX_FORMATS)
def test_save_and_load(form):
    stored = Case(form, (7, 9), "random").stored(fill=float("-inf"))
    file = io.BytesIO()
    torch.save({"a": stored, "b": stored * 2, "p": nn.Parameter(stored)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["a"], stored) and loaded["a"].fill == float("-inf")
    assert loaded["a"].pattern.arrays() == [] or loaded["a"].pattern is loaded["b"].pattern
    assert isinstance(loaded["p"], nn.Parameter) and loaded["p"].requires_grad
    assert torch.equal(pickle.loads(pickle.dumps(stored)), stored)


def test_loading_malformed_data_is_refused():
    stored = tensor(torch.eye(3))
    rebuild, arguments = stored.__reduce_ex__(2)
    arguments[3][1][0] = 99
    with pytest.raises(InvalidTensorError, match="is 99"):
        rebuild(arguments[0], arguments[1], [None, arguments[2][1].clone()], *arguments[3:])


def test_copies():
    layer = Layer()
    (layer(torch.rand(2, 9)) ** 2).sum().backward()
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter) and twin.weight.pattern is layer.weight.pattern
    assert torch.equal(twin.weight.grad, layer.weight.grad) and twin.weight.grad is not layer.weight.grad
    with torch.no_grad():
        twin.weight.mul_(2)
    assert not torch.equal(twin.weight, layer.weight)
    detached, cloned = layer.weight.detach(), layer.weight.clone()
    assert detached.values().data_ptr() == layer.weight.values().data_ptr() and not detached.requires_grad
    assert cloned.values().data_ptr() != layer.weight.values().data_ptr() and cloned.requires_grad
    with pytest.raises(InvalidTensorError, match="detach"):
        copy.deepcopy(cloned)


def test_pointwise_operators_act_on_values_and_fill():
    stored = Case("csr", (7, 9), "random").stored()
    dense = stored.to_dense()
    for function in (
        lambda a: a * 2 - a / 4,
        lambda a: (a + 1) * 3,
        lambda a: torch.exp(a),
        lambda a: a * torch.tensor(3.0, dtype=torch.float64),
        lambda a: torch.where(a > 0, a, -1.0),
        lambda a: torch.relu(1 - a).sqrt(),
        lambda a: torch.lerp(a, a + 2, 0.25),
        lambda a: torch.addcmul(a, a, a, value=2),
        lambda a: torch.addcmul(torch.tensor(3.0, dtype=torch.float64), a, a, value=2),
        lambda a: torch.clamp(a, 0.25, 0.75) ** 2,
        lambda a: -a,
        lambda a: torch.ones_like(a) + torch.zeros_like(a) + torch.full_like(a, 3),
    ):
        result = function(stored)
        assert isinstance(result, SparseTensor) and result.pattern is stored.pattern
        assert torch.allclose(result.to_dense(), function(dense)), function
    assert torch.equal((stored > 0).to_dense(), dense > 0)
    assert (stored.with_fill(float("inf")) * 0.0).fill != 0
    assert (stored * stored.with_fill(float("inf"))).fill == 0  # zero annihilates where nothing is stored
    assert (stored / stored).fill == 0


def test_in_place_operators():
    stored = Case("csr", (7, 9), "random").stored()
    dense = stored.to_dense()
    pointer = stored.values().data_ptr()
    stored.mul_(2).add_(1.0).sub_(stored * 0.5)
    assert torch.allclose(stored.to_dense(), dense + 0.5)
    assert stored.values().data_ptr() == pointer and stored.fill == 0.5
    stored.zero_()
    assert stored.fill == 0 and float(stored.values().abs().sum()) == 0
    stored.copy_(Case("csr", (7, 9), "random").stored())
    assert torch.equal(stored.to_dense(), dense)
    torch._foreach_addcdiv_([stored], [stored * 0], [stored], 1.0)
    assert stored.fill == 0


def test_what_is_written_to_after_it_was_saved_for_backward():
    leaf = nn.Parameter(tensor(torch.eye(3)))
    saved = (leaf.values() ** 2).sum()
    with torch.no_grad():
        leaf.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    for write in (
        lambda: leaf.mul_(2),
        lambda: leaf.values().mul_(2),
        lambda: torch._foreach_mul_([leaf], 2),
    ):
        result = einsum("ij,jk->ik", leaf, torch.ones(3, 2, requires_grad=True)).sum()
        with torch.no_grad():
            write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


def test_values_that_their_owner_resizes():
    values = torch.ones(3)
    stored = SparseTensor(tensor(torch.eye(3)).pattern, values)
    assert stored.values().data_ptr() == values.data_ptr()
    einsum("ij->ij", stored)
    values.resize_(0)
    assert torch.equal(einsum("ij->ij", stored).to_dense(), torch.eye(3))


def test_shared_memory():
    first = tensor(torch.eye(3))
    second, x = first * 2, torch.rand(3, 2)
    einsum("ij,jk->ik", second, x)
    assert not first.is_shared() and first.share_memory_() is first and first.is_shared()
    for stored, factor in ((first, 1), (second, 2)):
        assert torch.allclose(einsum("ij,jk->ik", stored, x), factor * x)
    assert all(array.is_shared() for array in first.pattern.arrays_in_place())
    layer = Layer()
    layer.share_memory()
    assert layer.weight.is_shared()


def test_sent_to_another_process():
    pickled = ForkingPickler.dumps(nn.Parameter(tensor(torch.eye(3), fill=2)))
    found = pickle.loads(pickled)
    assert isinstance(found, nn.Parameter) and found.fill == 2
    assert torch.equal(found.to_dense(), tensor(torch.eye(3), fill=2).to_dense())


def test_data_is_replaced_whole():
    stored = tensor(torch.eye(3))
    alias = stored.detach()
    stored.data = tensor(torch.ones(3, 3).triu(), "coo")
    assert stored.nnz == 6 and str(stored.format) == "coordinate, coordinate" and alias.nnz == 3
    assert torch.equal(einsum("ij->ij", stored).to_dense(), torch.ones(3, 3).triu())
    for other in (torch.ones(3, 3), tensor(torch.eye(2)), tensor(torch.eye(3).double())):
        with pytest.raises(InvalidTensorError, match="the data of a SparseTensor"):
            stored.data = other


@pytest.mark.parametrize("name", ["numpy", "tolist", "__array__", "__dlpack__"])
def test_there_is_no_dense_memory_to_hand_out(name):
    with pytest.raises(UnsupportedOperatorError, match=f"{name} of a SparseTensor"):
        getattr(tensor(torch.eye(2)), name)()
    with pytest.raises(UnsupportedOperatorError, match="apply_"):
        tensor(torch.eye(2)).apply_(abs)


@pytest.mark.parametrize("modes, error", [((0, 5), IndexError), ((-3, 0), IndexError), (("a", 0), TypeError)])
def test_modes_that_are_none(modes, error):
    stored = tensor(torch.eye(2))
    with pytest.raises(error):
        stored.transpose(*modes)
    with pytest.raises(error):
        stored.permute(modes)
    with pytest.raises(FormatError, match="every mode once"):
        stored.permute(0, 0)


def test_to_dtype_and_norm():
    stored = Case("csr", (7, 9), "random").stored().requires_grad_()
    half = stored.to(torch.float32)
    assert half.dtype == torch.float32 and half.pattern is stored.pattern
    assert stored.double() is stored and stored.float().dtype == torch.float32
    for refused in (lambda: stored.to(torch.uint8), stored.detach().byte):
        with pytest.raises(InvalidTensorError, match=r"uint8; convert them to one of"):
            refused()
    half.to_dense().sum().backward()
    assert stored.grad.dtype == torch.float64
    assert float(torch.linalg.vector_norm(stored.detach())) == pytest.approx(
        float(stored.detach().to_dense().norm())
    )
    filled = stored.detach().with_fill(1)
    assert float(torch.linalg.vector_norm(filled)) == pytest.approx(float(filled.to_dense().norm()))


def test_transposes_share_everything():
    stored = Case("j/2: dense, i: dense, j%2: compressed", (7, 9), "random").stored()
    for other in (
        stored.T,
        stored.t(),
        stored.mT,
        stored.transpose(0, 1),
        stored.permute(1, 0),
        stored.swapaxes(0, 1),
    ):
        assert torch.equal(other.to_dense(), stored.to_dense().T)
        assert other.values().data_ptr() == stored.values().data_ptr()
        validate.pattern(other.pattern)
    assert stored.T.T.pattern is stored.pattern
    cube = Case("csf", (3, 4, 5), "random").stored()
    assert torch.equal(torch.permute(cube, (2, 0, 1)).to_dense(), cube.to_dense().permute(2, 0, 1))
    for places in ((0, 2), (-1, 0), ((0, 1), (2, 0))):
        assert torch.equal(cube.movedim(*places).to_dense(), cube.to_dense().movedim(*places))
    with pytest.raises(IndexError):
        cube.moveaxis(0, 3)
    assert torch.equal(cube.transpose(-1, 0).to_dense(), cube.to_dense().transpose(-1, 0))
    with pytest.raises(ShapeError, match=r"t\(\) of a tensor of 3 modes"):
        cube.t()


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda a: torch.cumsum(a, 0), "torch.cumsum: torch's cumsum has no implementation"),
        (lambda a: a.sort(), "sort"),
        (lambda a: torch.fft.fft(a), "fft"),
        (lambda a: torch.nn.functional.alpha_dropout(a, 0.5, True), "alpha_dropout"),
        (lambda a: a.copy_(torch.ones(7, 9)), "Pattern"),
        (lambda a: a.normal_(), "normal_"),
    ],
)
def test_what_has_no_meaning_raises(call, name):
    stored = Case("csr", (7, 9), "random").stored()
    with strict(), pytest.raises(UnsupportedOperatorError) as error:
        call(stored)
    assert name in str(error.value)


def test_a_dense_tensor_takes_all_entries():
    stored = Case("csr", (7, 9), "random").stored()
    assert torch.equal(torch.ones(7, 9).double().copy_(stored), stored.to_dense().double())


def test_operators_of_the_table_come_first():
    stored = tensor(torch.eye(2))
    seen = []
    operators[torch.trace] = lambda a: seen.append(a) or "trace"
    try:
        assert torch.trace(stored) == "trace" and seen == [stored]
    finally:
        del operators[torch.trace]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda a, x: (a.values() * 2).sum() + x.sum(),
        lambda a, x: a.to_dense() @ x,
        lambda a, x: (a * 2).values() + x.sum(),
        lambda a, x: (torch.exp(a + a).to_dense() - a.to_dense()) @ x,
    ],
)
def test_compiles_as_one_graph(function):
    torch._dynamo.reset()
    leaf = nn.Parameter(tensor(Case("csr", (7, 9), "random").dense(torch.float32)))
    x = torch.rand(9, 3)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected, got = function(leaf, x), compiled(leaf, x)
    assert torch.allclose(got, expected)
    expected.sum().backward()
    first, leaf.grad = leaf.grad, None
    got.sum().backward()
    assert isinstance(leaf.grad, SparseTensor) and torch.allclose(leaf.grad.values(), first.values())


def test_exports():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(tensor(Case("csr", (7, 9), "random").dense(torch.float32)))

        def forward(self, x):
            return x * self.weight.values().sum()

    model, x = Scaled(), torch.rand(3)
    assert torch.allclose(torch.export.export(model, (x,)).module()(x), model(x))


def test_gradients_that_others_hold_are_copied():
    dense = torch.eye(4) + torch.diag(torch.ones(3), 1)
    leaf, kept = tensor(dense, "csr").requires_grad_(True), []
    leaf.register_hook(kept.append)
    (leaf @ torch.ones(4, 3)).sum().backward()
    assert torch.equal(leaf.grad.to_dense(), 3 * dense)
    assert torch.equal(kept[0].to_dense(), 3 * dense)
    assert leaf.grad is not kept[0]
