"""Rules that prune take matrices that products read, name what they pass over, and keep their zeros in training."""

import copy
import logging
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

import sparsify
from sparsify.errors import CaptureError, RecipeError, UnsupportedOperatorError
from sparsify.passes.rules.product_weights import product_weights


def recipe(**how: Any) -> dict[str, Any]:
    rule = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}, **how}
    return {"schema": 1, "name": "pruned", "sparsify": [rule]}


def zeros(model: nn.Module) -> set[str]:
    """The weights of which most entries are 0, biases aside, which may begin so."""
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("bias")}
    return {name for name, value in state.items() if (value == 0).float().mean() > 0.5}


@pytest.mark.sampled(2)
def test_transformers_keep_their_norms() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    sparse = sparsify.apply(model, recipe(), torch.randn(2, 8, 32))
    matrices = ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"]
    assert zeros(sparse) == {f"layers.0.{name}" for name in matrices}
    assert {entry.name for entry in sparse.report.pruned} == zeros(sparse)
    passed = {entry.name: entry.reason for entry in sparse.report.passed_over}
    assert passed == {"layers.0.norm1.weight": "one mode", "layers.0.norm2.weight": "one mode"}
    assert "rule 1  one mode  layers.0.norm1.weight, layers.0.norm2.weight" in str(sparse.report)
    assert sparse.report.to_dict()["pruned"][0]["zeros"] == pytest.approx(0.9, abs=0.01)


class Kinds(nn.Module):
    """Parameters that are read in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.position = nn.Parameter(torch.randn(1, 8, 16))
        self.norm = nn.LayerNorm((8, 16))
        self.data, self.einsum = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16, 16))
        self.left, self.right = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 16))
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.conv, self.back = nn.Conv1d(16, 16, 1, groups=2), nn.ConvTranspose1d(16, 16, 1)
        self.pair, self.unread = nn.Bilinear(16, 16, 16), nn.Linear(16, 16)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.head = nn.Linear(16, 20, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.table(ids) + self.position) @ self.data.data
        x = torch.einsum("bij,jk->bik", x, self.einsum) + x @ (self.left @ self.right)
        x, _ = self.lstm(x)
        x = self.back(self.conv(x.transpose(1, 2))).transpose(1, 2).contiguous()
        return self.head(self.scaled(self.pair(x, x)))


def test_what_products_read() -> None:
    model = Kinds().eval()
    read = product_weights(model, lambda model: model(torch.randint(0, 20, (2, 8))))
    names = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert read == names - {"table.weight", "position", "norm.weight", "norm.bias", "unread.weight"}
    assert product_weights(model, lambda model: model(None)) is None


class Remembering(nn.Module):
    """A linear layer that keeps its result, and reads an entry if asked to."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.linear, self.reads = nn.Linear(4, 4), reads
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.reads and float(x.sum()) < 0:
            return x
        self.last = self.linear(x)
        return self.last


@pytest.mark.parametrize(("reads", "kind"), [(False, FakeTensor), (True, Tensor)])
def test_products_are_computed_for_models_that_read_entries(reads: bool, kind: type[Tensor]) -> None:
    results: list[type] = []
    model = Remembering(reads=reads)

    def run(called: nn.Module) -> None:
        results.append(type(called(torch.ones(2, 4))))

    assert product_weights(model, run) == {"linear.weight"}
    assert results == [kind]
    assert not isinstance(model.last, FakeTensor)


class Tabled(nn.Module):
    """A linear layer and tables that all calls of a process share."""

    tables: ClassVar[dict[str, Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.tables.setdefault("range", torch.arange(4).float())
        self.tables.setdefault("list", torch.tensor([1.0, 2.0, 3.0, 4.0]) / 2)
        self.tables.setdefault("halves", self.linear.bias.detach().half())
        return sum(self.tables.values(), self.linear(x))


def test_shared_tables_keep_their_entries() -> None:
    model = Tabled()
    assert product_weights(model, lambda called: called(torch.ones(2, 4))) == {"linear.weight"}
    assert len(Tabled.tables) == 3
    assert not any(isinstance(table, FakeTensor) for table in Tabled.tables.values())


class Writing(nn.Module):
    """A linear layer with results in a tensor of zeros, and a loop until results are written, if asked to."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.linear, self.factor, self.reads = nn.Linear(4, 4), nn.Parameter(torch.ones(2, 4)), reads

    def forward(self, x: Tensor) -> Tensor:
        found = torch.zeros(2, 4)
        while self.reads and not found.all():
            found[:] = self.linear(x).exp()
        if self.reads:
            return found
        found[:, 1:] = self.linear(x)[:, 1:]
        return (found * self.factor) @ self.linear.weight


@pytest.mark.parametrize(("reads", "kind"), [(False, FakeTensor), (True, Tensor)])
def test_tensors_written_with_results_depend_on_the_inputs(reads: bool, kind: type[Tensor]) -> None:
    results: list[type] = []

    def run(called: nn.Module) -> None:
        results.append(type(called(torch.ones(2, 4))))

    assert product_weights(Writing(reads=reads), run) == {"linear.weight"}
    assert results == [kind]


class Groups(nn.Module):
    """An operator whose fake version refuses float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight, offs=torch.tensor([4, 8], dtype=torch.int32))


def test_refusals_of_fake_tensors_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger(fake_tensor.__name__), "callHandlers", records.append)
    assert product_weights(Groups(), lambda called: called(torch.ones(8, 16))) == {"weight"}
    assert not records


def test_calls_in_several_threads_leave_the_switches_of_torch() -> None:
    """The second call begins within the first one and would end after it."""
    model, first_is_over = nn.Linear(4, 4), threading.Event()

    def second(model: nn.Module) -> Tensor:
        first_is_over.wait(10)
        return model(torch.ones(2, 4))

    thread = threading.Thread(target=product_weights, args=(model, second))

    def first(model: nn.Module) -> Tensor:
        thread.start()
        thread.join(0.5)
        return model(torch.ones(2, 4))

    before = torch.backends.mha.get_fastpath_enabled()
    product_weights(model, first)
    first_is_over.set()
    thread.join()
    assert torch.backends.mha.get_fastpath_enabled() is before


@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("how", "taken"),
    [
        ({}, ["head.weight"]),
        ({"targets": ["param:*"]}, ["head.weight", "mix"]),
        ({"targets": ["param:position"]}, ["position"]),
        ({"targets": ["param:*"], "types": ["Embedding"]}, ["table.weight"]),
        ({"targets": ["param:*"], "types": ["LayerNorm"]}, ["norm.bias", "norm.weight"]),
        ({"targets": ["param:*"], "types": ["Linear"]}, ["head.weight"]),
    ],
)
def test_what_rules_take(how: Any, taken: list[str]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20)
            self.position, self.mix = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(16, 16))

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(self.table(ids) + self.position) @ self.mix)

    model, ids = Model().eval(), torch.randint(0, 20, (2, 8))
    nn.init.normal_(model.norm.bias)
    sparse = sparsify.apply(model, recipe(**how), ids)
    assert sorted(entry.name for entry in sparse.report.pruned) == taken
    state, before = sparse.state_dict(), model.state_dict()
    assert sorted(name for name in state if not torch.equal(state[name], before[name])) == taken


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_tables_that_are_tied_to_matrices() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body, self.head = (
                nn.Embedding(20, 16),
                nn.Linear(16, 16),
                nn.Linear(16, 20, bias=False),
            )
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.body(self.table(ids)))

    ids = torch.randint(0, 20, (2, 8))
    sparse = sparsify.apply(Model().eval(), recipe(), ids)
    assert zeros(sparse) == {"body.weight"}
    assert any("tied to a table of rows, table.weight" in entry.reason for entry in sparse.report.passed_over)
    shared = sparsify.apply(Model().eval(), recipe(ties="share"), ids)
    assert zeros(shared) == {"body.weight", "table.weight", "head.weight"}


def test_a_rule_that_passes_over_all_says_so() -> None:
    model = nn.Sequential(nn.Embedding(20, 16), nn.LayerNorm(16)).eval()
    with pytest.raises(RecipeError, match=r"0\.weight is passed over: a table of rows, of type Embedding"):
        sparsify.apply(model, recipe(), torch.randint(0, 20, (2, 8)))


class Table(nn.Module):
    """A matrix that is added, by a module of no known kind."""

    def __init__(self) -> None:
        super().__init__()
        self.added = nn.Module()
        self.added.weight = nn.Parameter(torch.randn(4, 16))
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.added.weight)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_without_an_example_the_first_call_tells() -> None:
    x = torch.randn(4, 16)
    sparse = sparsify.apply(Table().eval(), recipe())
    with pytest.warns(RuntimeWarning, match=r"added\.weight were pruned, and no product reads them"):
        sparse(x)
    assert zeros(sparsify.apply(Table().eval(), recipe(), x)) == {"linear.weight"}


def test_loaded_models_are_not_pruned_anew(tmp_path: Path) -> None:
    x = torch.randn(4, 16)
    sparse = sparsify.apply(Table().eval(), recipe(), x)
    sparsify.save(sparse, tmp_path)
    loaded = sparsify.load(tmp_path, Table())
    assert zeros(loaded) == {"linear.weight"}
    torch.testing.assert_close(loaded(x), sparse(x))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize("how", [{"types": ["Linear"]}, {"types": ["Conv1d"]}, {}, {"ties": "share"}])
def test_compiled_models_are_pruned_as_applied_ones(how: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.conv = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Conv1d(8, 8, 1)
            self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.body(self.conv(self.norm(self.table(ids)))))

    torch.manual_seed(0)
    model, ids = Model().eval(), torch.randint(0, 20, (2, 8))
    options = {"recipe": recipe(**how), "inner": "eager"}
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="sparsify", options=options)(ids)
        wanted = sparsify.apply(model, recipe(**how), ids)(ids)
        assert not torch.allclose(found, model(ids), atol=1e-3)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_named(value: float) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.randn(4, 64)
    with torch.no_grad():
        model[0].weight[2, 5] = value
    with pytest.raises(RecipeError, match=rf"0\.weight is {value} at \[2, 5\]"):
        sparsify.apply(model, recipe(), x)


OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 3}),
    (torch.optim.Muon, {"lr": 0.1}),
]
GIVEN = {"name": "given", "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}]}


def with_zeros() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(32, 16))
    with torch.no_grad():
        model[0].weight.mul_(torch.rand(16, 32) > 0.9)
    return model


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(("kind", "how"), OPTIMIZERS)
def test_optimizers_keep_zeros(kind: Any, how: Any, copied: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 32)
    is_whole = kind in (torch.optim.LBFGS, torch.optim.Muon)
    given = (with_zeros(), GIVEN) if is_whole else (nn.Sequential(nn.Linear(32, 16)), recipe())
    sparse = sparsify.apply(*given, x)
    sparse = copy.deepcopy(sparse) if copied else sparse
    weight = sparse.get_parameter("0.weight")
    assert isinstance(weight, sparsify.SparseTensor) == (not is_whole)
    before = weight.detach().clone()
    optimizer = kind([weight], **how)

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = sparse(x).square().sum()
        found.backward()
        return found

    for _ in range(2):
        optimizer.step(loss)
    assert not torch.equal(weight, before)
    assert torch.equal(weight == 0, before == 0)


@pytest.mark.parametrize(
    "kind", [torch.optim.LBFGS, torch.optim.Muon, torch.optim.Rprop, torch.optim.Adafactor]
)
def test_optimizers_that_need_dense_parameters_say_so(kind: Any) -> None:
    x = torch.randn(4, 32)
    sparse = sparsify.apply(nn.Sequential(nn.Linear(32, 16)), recipe(), x)
    optimizer = kind([sparse.get_parameter("0.weight")])
    sparse(x).sum().backward()
    with pytest.raises(
        UnsupportedOperatorError, match=rf"{kind.__name__} cannot train a parameter of a SparseTensor"
    ):
        optimizer.step()


def test_optimizers_of_weights_that_were_packed_say_so() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 256)
    rule = recipe(role="weight", prune={"method": "magnitude", "sparsity": 0.95})
    sparse = sparsify.apply(nn.Sequential(nn.Linear(256, 384)).eval(), rule, x)
    assert isinstance(sparse.get_parameter("0.weight"), sparsify.SparseTensor)
    early = torch.optim.AdamW(sparse.parameters())
    sparse.train()
    late = torch.optim.AdamW(sparse.parameters())
    sparse(x).sum().backward()
    with pytest.warns(
        RuntimeWarning, match=r"holds the packed weights 0.weight, .* make the optimizer after"
    ):
        early.step()
    early.step()
    late.step()


def test_sparse_models_are_not_applied_again() -> None:
    sparse = sparsify.apply(nn.Sequential(nn.Linear(32, 16)), recipe(), torch.randn(4, 32))
    with pytest.raises(CaptureError, match="sparse already"):
        sparsify.apply(sparse, recipe(), torch.randn(4, 32))


def test_muon_changes_other_weights_as_before() -> None:
    x, weight = torch.randn(4, 32), nn.Parameter(torch.randn(16, 32).relu())
    sparsify.apply(nn.Sequential(nn.Linear(32, 16)), recipe(), x)
    (x @ weight.T).square().sum().backward()
    torch.optim.Muon([weight], lr=0.1).step()
    assert weight.count_nonzero() > 500


def test_muon_refuses_sparse_parameters() -> None:
    dense = torch.randn(16, 32) * (torch.rand(16, 32) < 0.3)
    weight = nn.Parameter(sparsify.tensor(dense, format="csr"))
    (weight @ torch.randn(32, 4)).square().sum().backward()
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"Muon (cannot train a parameter of a SparseTensor|does, are for dense)",
    ):
        torch.optim.Muon([weight], lr=0.1).step()
    assert torch.equal(weight.to_dense() != 0, dense != 0)


def test_models_in_sixteen_bits_without_kernels_say_so() -> None:
    model, x = nn.Sequential(nn.Linear(32, 16)).bfloat16(), torch.randn(4, 32, dtype=torch.bfloat16)
    with pytest.warns(
        RuntimeWarning, match=r"nothing of this model in torch\.bfloat16 runs in kernels: torch"
    ):
        sparse = sparsify.apply(model, recipe(), x)
    assert not sparse.report.regions
    assert sparsify.apply(copy.deepcopy(model).eval(), recipe(), x).report.regions


def test_one_of_two_targets_matches_nothing() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    given = recipe(targets=["param:0.weight", "param:2.weight"])
    with pytest.warns(
        RuntimeWarning, match=r"rule 1: the target 'param:2.weight' matches nothing; did you mean"
    ):
        sparse = sparsify.apply(model, given, torch.randn(2, 16))
    assert zeros(sparse) == {"0.weight"}
    sparsify.apply(
        model, recipe(targets=["param:0.weight", "param:2.weight"], optional=True), torch.randn(2, 16)
    )


def test_targets_of_weights_under_masks_of_torch_match() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    for layer in model:
        nn.utils.prune.l1_unstructured(layer, "weight", 0.5)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sparse = sparsify.apply(
            model, recipe(targets=["param:0.weight", "param:1.weight"]), torch.randn(2, 16)
        )
    assert not [one for one in found if "matches nothing" in str(one.message)]
    assert zeros(sparse) == {"0.weight", "1.weight"}


def test_weights_in_float16_that_train() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).half()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sparsify.apply(model, recipe(), torch.randn(2, 16).half(), verify=False)
    text = str(found[0].message)
    assert (
        text.startswith("0.weight and 3 more, parameters that train, are float16") and "model.float()" in text
    )
    sparsify.apply(model.eval(), recipe(), torch.randn(2, 16).half(), verify=False)
