"""Every kind of row at a tiny size: right results, a table with the required ratios."""

import pytest

from experiments.foundation.command import table
from experiments.serving import command
from sparsify.bench.place import Place

TINY = Place(None, 0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["encoder-1-float32-80", "encoder-8-bfloat16-90", "encoder-8-int8-80", "mixture-16"]
)
def test_texts(name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])
    assert name in table([row])


@pytest.mark.sampled(3)
def test_tokens():
    pytest.importorskip("transformers", reason="transformers is not installed")
    row = command.run_row("decoder-float32-80", TINY, quick=True)
    assert all(c["error"] < 1e-4 for c in row["contenders"])


@pytest.mark.sampled(4)
def test_images():
    row = command.run_row("resnet20-1-90", TINY, quick=True)
    assert {"sparsify", "torch", "inductor"} <= {c["name"] for c in row["contenders"]}
    (asked,) = (t["asked"] for t in row["targets"] if t["baseline"] == "inductor")
    assert asked == 1.6


def test_the_rows_of_the_table():
    assert {
        "encoder-8-float32-0",
        "distilbert-1-80",
        "resnet50-8-90",
        "resnet56-32-70",
        "mixture-1024",
    } <= set(command.CASES)
