"""The models that `sparsify train` trains: shapes, sizes, weights."""

import pytest
import torch

from sparsify.errors import DataError, SparsifyError
from sparsify.models import data, registry
from sparsify.models.train import accuracy

RESNET = "pretrained/resnet_cifar10/resnet20-12fca82f.th"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "arguments", "shape", "out", "parameters"),
    [
        ("gpt", {}, None, (2, 8, 256), 10_844_160),
        ("gpt-40m", {}, None, (2, 8, 256), 39_717_120),
        ("resnet20", {}, (2, 3, 32, 32), (2, 10), 269_722),
        ("lenet5", {}, (2, 1, 28, 28), (2, 10), 61_706),
        ("lenet5", {"image": 12}, (2, 1, 12, 12), (2, 10), None),
        ("lenet300", {}, (2, 784), (2, 10), 266_610),
    ],
)
def test_shapes(name, arguments, shape, out, parameters):
    model = registry.find(name).make(arguments).eval()
    x = torch.randint(256, (2, 8)) if shape is None else torch.randn(shape)
    with torch.no_grad():
        assert model(x).shape == out
    assert parameters is None or sum(value.numel() for value in model.parameters()) == parameters


def test_no_token_sees_a_later_one():
    model = registry.find("gpt").make({"layers": 2, "hidden": 32, "heads": 2}).eval()
    one = torch.randint(256, (1, 8))
    other = one.clone()
    other[0, 5:] = (one[0, 5:] + 1) % 256
    torch.testing.assert_close(model(one)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(one)[:, 5], model(other)[:, 5])


@pytest.mark.sampled(2)
def test_minilm():
    pytest.importorskip("transformers", reason="transformers is not installed")
    entry = registry.find("minilm")
    sizes = {"layers": 1, "hidden": 24, "heads": 2, "intermediate": 48, "vocabulary": 50}
    model = entry.make({"weights": "random", **sizes}).eval()
    assert model(torch.randint(50, (2, 7)))[0].shape == (2, 7, 24)


def test_sizes_that_do_not_fit():
    with pytest.raises(SparsifyError, match="5 heads do not divide 32"):
        registry.find("gpt").make({"hidden": 32, "heads": 5})
    with pytest.raises(SparsifyError, match="nothing is left"):
        registry.find("lenet5").make({"image": 8})


def test_weights_of_another_model(tmp_path):
    torch.save({"state_dict": {"module.x": torch.zeros(1)}}, tmp_path / "x.th")
    for file in (tmp_path / "x.th", tmp_path / "none.th"):
        with pytest.raises(DataError, match=r"holds no weights for this model: .*akamaster"):
            registry.find("resnet20").make({"checkpoint": str(file)})


@pytest.mark.sampled(3)
def test_pretrained_weights(data_root):
    model = registry.find("resnet20").make({"checkpoint": str(data_root / RESNET)}).eval()
    pixels, classes = data.images("cifar10", data_root).val
    with torch.no_grad():
        assert accuracy(model(pixels), classes, torch.arange(len(classes))) == pytest.approx(0.916)
