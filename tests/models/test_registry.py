"""Models by name."""

import subprocess
import sys

import pytest

from sparsify import recipe
from sparsify.errors import SparsifyError
from sparsify.models import registry
from sparsify.models.registry import MODELS, Entry


def test_knows_the_models():
    assert list(MODELS)[:8] == ["gcn", "gcn-matmul", "sage", "gin", "gat", "mlp", "bert", "vit"]
    assert [name for name, entry in MODELS.items() if not entry.is_graph] == [
        "mlp",
        "bert",
        "vit",
        "autoencoder",
        "dlrm",
        "resnet50",
        "gpt",
        "gpt-40m",
        "resnet20",
        "lenet5",
        "lenet300",
        "minilm",
    ]
    assert registry.find("gcn").datasets[0] == "synthetic"
    assert registry.find("gcn").arguments() == {"hidden": 16, "dropout": 0.5}


@pytest.mark.parametrize("name", MODELS)
def test_default_recipe_exists(name):
    assert registry.find(name).recipe in recipe.names()


def test_unknown_model_gets_the_nearest_name():
    with pytest.raises(SparsifyError, match="no model 'gcnn'; did you mean gcn"):
        registry.find("gcnn")


def test_name_is_given_once(monkeypatch):
    monkeypatch.setattr(registry, "MODELS", dict(MODELS))
    registry.register(Entry("mine", dict, recipe="gcn"))
    with pytest.raises(SparsifyError, match="'mine' is registered already"):
        registry.register(Entry("mine", dict, recipe="gcn"))


def test_missing_package_is_named():
    entry = Entry("x", "no_such_package_here.models:Model", recipe="gcn")
    with pytest.raises(
        SparsifyError, match=r"x needs no_such_package_here.*pip install 'sparsify-fx\[graph\]'"
    ):
        entry.load()


def test_the_extra_of_a_missing_package_is_the_model_s(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "sparsify.models.bert", raising=False)
    with pytest.raises(SparsifyError, match=r"bert needs transformers.*pip install 'sparsify-fx\[text\]'"):
        registry.find("bert").load()


def test_listing_imports_no_torch():
    program = "import sys; from sparsify.models import registry; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
