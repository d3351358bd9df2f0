"""Models of other libraries: what is found in them, outputs and gradients against dense torch in float64."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from experiments.coverage import command, reference, subjects
from experiments.coverage.catalogue import SUBJECTS
from experiments.coverage.verify import compare, linear_weights, verify
from sparsify import patterns

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.mark.sampled(16)
@pytest.mark.model
@pytest.mark.parametrize("name", SUBJECTS)
def test_model(name):
    subject = SUBJECTS[name]
    pytest.importorskip(subject.package, reason=f"{subject.package} is not installed")
    found = verify(subject)
    assert found.is_whole, found
    assert command.row(name, found) in PAGE.read_text(encoding="utf-8"), "python -m experiments.coverage"


def test_table_of_the_readme():
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(command.HEAD[0]) :].partition("\n\n")[0].splitlines()
    assert tuple(table[:2]) == command.HEAD
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == list(SUBJECTS)


@pytest.mark.sampled(2)
def test_command(capsys):
    assert command.main(["Autoencoder, sparse batch"]) == 0
    assert capsys.readouterr().out.splitlines()[2] in PAGE.read_text(encoding="utf-8")


def test_other_results_are_noticed():
    subject = SUBJECTS["nn.TransformerEncoder (torch)"]
    torch.manual_seed(0)
    model, inputs = subject.make().eval(), subject.inputs(2, 20)
    dense = subject.make().double().eval()
    dense.load_state_dict(model.state_dict())
    for name in linear_weights(dense):
        assert dense.get_parameter(name).all()  # nothing hides a gradient
    outputs, gradients, calls = compare(model, dense, {"kind": "sliding_window", "before": 20}, inputs)
    assert max(outputs, gradients) < 1e-5
    assert calls == 2
    assert min(compare(model, dense, subjects.WINDOW, inputs)[:2]) > 1e-2


@pytest.mark.parametrize(
    "mask", [subjects.LONGFORMER, subjects.BIGBIRD, subjects.WINDOW], ids=lambda m: m["kind"]
)
def test_patterns_of_the_reference(mask):
    kind, numbers = mask["kind"], {name: number for name, number in mask.items() if name != "kind"}
    for rows, columns in ((40, 40), (27, 33)):
        kept = patterns.KINDS[kind](rows, columns, **patterns.arguments(kind, numbers)).to_dense()
        assert torch.equal(reference.keep(mask, rows, columns), kept)


@pytest.mark.parametrize(
    "how", [{"is_causal": True}, {"enable_gqa": True, "scale": 0.3}, {"attn_mask": "float"}], ids=str
)
def test_attention_of_the_reference(how):
    query, key, value = torch.randn(2, 4, 9, 5), torch.randn(2, 4, 9, 5), torch.randn(2, 4, 9, 6)
    if "enable_gqa" in how:
        key, value = key[:, :2], value[:, :2]
    given = {**how, "attn_mask": torch.randn(9, 9)} if "attn_mask" in how else how
    wanted = functional.scaled_dot_product_attention(query, key, value, **given)
    with reference.masked_attention({"kind": "sliding_window", "before": 9}) as calls:
        found = functional.scaled_dot_product_attention(query, key, value, **given)
    torch.testing.assert_close(found, wanted)
    assert calls == [(2, 4, 9, 9)]
