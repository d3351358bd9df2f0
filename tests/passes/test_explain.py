"""What is said of applied models: regions with their origin, and what stayed dense."""

import pytest
import torch
from graph_models import HandWritten, KipfMatmul, TwoLayers, adjacency, graph
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.explain import only
from sparsify.errors import SparsifyError
from sparsify.passes.apply import apply
from sparsify.passes.explain import STAGES, explain_model

geometric = pytest.importorskip("torch_geometric.nn")
RECIPE = {
    "schema": 1,
    "name": "own",
    "sparsify": [
        {"id": "adjacency", "targets": ["op:message_passing"], "role": "adjacency", "format": "csr"}
    ],
}


@pytest.fixture(scope="module")
def applied():
    torch.manual_seed(0)
    with options.override(vector_bytes=32):
        yield apply(TwoLayers(geometric.GCNConv).eval(), RECIPE, graph(), verify=False)


def titles(sections):
    return [section.title for section in sections]


def test_a_region_goes_through_all_stages(applied):
    found = explain_model(applied)
    assert titles(found.regions) == ["region_1 of c1", "region_2 of c2"]
    inner = found.regions[0].inner
    assert [title for title in titles(inner) if not title.startswith("step")] == [
        title for title in STAGES if title in titles(inner)
    ]
    assert titles(inner)[-5:] == ["notation", "schedule", "loops", "cpp", "kernel"]  # of the one kernel


def test_operands_are_named_by_their_tensors(applied):
    first, second = (
        {section.title: section.text for section in region.inner} for region in explain_model(applied).regions
    )
    assert "c1.bias" in first["formats"]
    assert "from edge_index" in first["formats"]
    assert "once per graph" in first["formats"]
    assert "%region_1" in second["formats"]
    assert first["marked"].startswith("A[i,j]: adjacency, dense(i) compressed(j)  rule adjacency")
    assert "%linear = linear(%x, c1.lin.weight)" in first["graph"]
    assert "float32[n, 16]" in first["graph"]


def test_golden(applied, golden):
    found = explain_model(applied)
    stages = ("graph", "marked", "einsum", "formats", "notation")  # schedules depend on measurements
    golden("explain/gcn.txt", "\n\n\n".join(map(str, (found.model, *only(found.regions[:1], stages)))))


def test_explain_prints_it(applied):
    assert sparsify.explain(applied) == str(explain_model(applied))


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_what_stays_dense_is_listed_with_its_reason():
    class Softmaxed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = HandWritten(7, 4)

        def forward(self, x, edge_index):
            return self.layer(torch.softmax(x, -1), edge_index)

    both = {**RECIPE, "sparsify": [*RECIPE["sparsify"], {"id": "features", "targets": ["input:x"]}]}
    text = str(explain_model(apply(Softmaxed().eval(), both, graph(), verify=False)).model)
    assert "left dense\n    %softmax  softmax" in text
    assert "softmax has no sparse form" in text


def test_variants_are_told_apart():
    model = apply(HandWritten(7, 4).eval(), RECIPE, graph(), verify=False)
    model.train()
    model(*graph())
    assert titles(explain_model(model).regions) == [
        "region_1 of lin in evaluation",
        "region_1 of lin in training",
    ]


def test_a_dump_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        options.override(dump=("cpp",), dump_dir=tmp_path / "file" / "below"),
        pytest.raises(SparsifyError, match=r"SPARSIFY_DUMP_DIR=.* cannot be written"),
    ):
        apply(HandWritten(7, 4).eval(), RECIPE, graph(), verify=False)


def test_a_model_that_never_ran_says_so():
    text = sparsify.explain(apply(HandWritten(7, 4).eval(), RECIPE))
    assert "nothing is captured yet: call the model once" in text


@pytest.mark.parametrize("subject", [nn.Linear(2, 2), None, 3], ids=["module", "nothing", "number"])
def test_other_subjects_are_refused(subject):
    with pytest.raises(SparsifyError, match=r"explain was given .*what sparsify.apply returned"):
        sparsify.explain(subject)


def test_sparse_inputs_are_named_by_the_input_not_by_its_parts():
    x, _ = graph()
    recipe = {**RECIPE, "sparsify": [{"targets": ["input:adj"], "format": "csr"}]}
    applied = apply(KipfMatmul(7, 4).eval(), recipe, (x, adjacency(20).to_sparse()), verify=False)
    (region,) = explain_model(applied).regions
    formats = next(section.text for section in region.inner if section.title == "formats")
    assert "d0s1  from adj, once per graph; int32 coordinates" in formats
