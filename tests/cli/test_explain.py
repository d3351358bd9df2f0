"""`sparsify explain`: models, expressions, stages, mistakes."""

import json
from pathlib import Path

import pytest

from sparsify.errors import FINE, NEGATIVE, USAGE
from sparsify.models import data
from sparsify.models.data.synthetic import synthetic

from .conftest import Cli


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = synthetic(nodes=200, edges=800, features=50)
    monkeypatch.setattr(data, "load", lambda name, root, seed: graph)


def test_a_model(cli: Cli, small: None) -> None:
    found = cli("explain", "gcn", "hidden=8")
    assert found.status == FINE
    assert found.out.startswith("model\n  GCN with gcn: 2 regions")
    for part in ("region_1 of conv1", "graph", "einsum", "notation", "schedule", "loops", 'extern "C"'):
        assert part in found.out
    assert "region_2 of conv2" not in found.out
    assert found.out.rstrip().endswith("1 more of 2 regions: --region N shows one, --region all every one")


def test_regions_and_stages(cli: Cli, small: None) -> None:
    found = cli("explain", "gcn", "hidden=8", "--region", "all", "--stage", "einsum,notation", "--json")
    assert found.status == FINE
    read = json.loads(found.out)
    assert (read["schema"], read["model"], read["recipe"]) == (1, "gcn", "gcn")
    assert [section["title"] for section in read["sections"]] == ["region_1 of conv1", "region_2 of conv2"]
    first = read["sections"][0]["sections"]
    assert first[0]["title"] == "einsum"
    assert {inner["title"] for step in first[1:] for inner in step.get("sections", [step])} == {"notation"}


def test_a_recipe_file(cli: Cli, small: None, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    assert cli("recipes", "cp", "gcn", mine).status == FINE
    found = cli("explain", mine, "--stage", "marked")
    assert found.status == FINE
    assert "mine.yaml:" in found.out


def test_the_operator_table(cli: Cli) -> None:
    found = cli("explain", "--ops")
    assert found.status == FINE
    assert "leaky_relu" in found.out and "where(self > 0, self, negative_slope * self)" in found.out
    assert "an order of entries is no function of an entry" in found.out
    rows = json.loads(cli("explain", "--ops", "--json").out)
    assert {row["operator"] for row in rows["operators"]}.isdisjoint(rows["opaque"])
    assert cli("explain").status == USAGE


def test_operators(cli: Cli, small: None) -> None:
    found = cli("explain", "gcn", "--ops")
    assert found.status == FINE
    assert "op:message_passing  2" in found.out
    read = json.loads(cli("explain", "gcn", "--ops", "--json").out)
    assert {"operator": "relu", "times": 1, "modules": []} in read["operators"]


def test_subscripts(cli: Cli) -> None:
    found = cli("explain", "ij,jk->ik", "csr", "dense", "--stage", "einsum,formats")
    assert found.status == FINE
    assert "Y[i,k] = sum(j, A[i,j] * B[j,k])" in found.out
    assert "dense(i) compressed(j)" in found.out
    assert "i, j, k at run time" in found.out


def test_sizes_decide_the_schedule_and_the_estimate(cli: Cli) -> None:
    def explained(size: int) -> tuple[str, str]:
        sizes = f"i={size},j={size},k={size}"
        found = cli("explain", "ij,jk->ik", "csr", "dense", "--sizes", sizes, "--density", "0.1", "--json")
        texts = {section["title"]: section["text"] for section in json.loads(found.out)["sections"]}
        return texts["schedule"].splitlines()[0], texts["cost"]

    small, large = explained(16), explained(1024)
    assert small[0] != large[0]
    assert "26 entries in A (density 0.1)" in small[1]
    assert "104858 entries in A" in large[1]
    assert cli("explain", "ij,j->i", "csr", "dense", "--density", "2").status == USAGE


def test_index_notation(cli: Cli) -> None:
    found = cli("explain", "y[i] = relu(A[i,j] * x[j])", "A=csr", "--dtype", "float64", "--json")
    assert found.status == FINE
    read = json.loads(found.out)
    assert read["subject"] == "y[i] = relu(A[i,j] * x[j])"
    titles = [section["title"] for section in read["sections"]]
    assert titles == ["einsum", "formats", "cost", "notation", "schedule", "loops", "cpp"]
    assert "float64" in read["sections"][1]["text"]


def test_a_schedule_of_ones_own(cli: Cli) -> None:
    found = cli("explain", "ij,j->i", "csr", "dense", "--schedule", "order i, j", "--stage", "schedule")
    assert found.status == FINE
    assert found.out.startswith("schedule\n  order i, j\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gcnn",), "there is no model 'gcnn'; did you mean gcn?"),
        (("gcn", "--stage", "notaton"), "--stage notaton is no stage; did you mean notation?"),
        (("gcn", "--stage", "lifted"), "the stages are graph, marked, einsum"),
        (("gcn", "--sizes", "i=3"), "--sizes is for an expression, and gcn is none"),
        (("gcn", "hiden=3"), "nothing here has an argument 'hiden'"),
        (("ij,jk->ik", "csr"), "has 2 operands and 1 formats are given; give one for each, as in"),
        (("ij,jk->ik", "csr", "dens"), "the format 'dens' of B"),
        (("ij,jk->ik", "csr", "dense, compressed, dense"), "of B"),
        (("ij,j->i", "csr", "dense", "--recipe", "gcn"), "--recipe is for a model"),
        (("ij,j->i", "csr", "dense", "--region", "2"), "--region is for a model"),
        (("ij,j->i", "csr", "dense", "--sizes", "k=3"), "there is no index variable 'k'"),
        (("ij,j->i", "csr", "dense", "--sizes", "i=many"), "--sizes i=many is no extent"),
        (("ij,j->i", "csr", "dense", "--sizes", "i"), "'i' is no argument"),
        (("ij,j->i", "csr", "dense", "--dtype", "float3"), "there are no kernels for float3"),
        (("ij,j->i", "csr", "dense", "--schedule", "ordr i"), "`ordr i` is no directive"),
        (("i?,j->i", "csr", "dense"), "subscripts are letters"),
        (("...j,j->...", "csr", "dense"), "write letters"),
        (("y[i] = A[i,j * x[j]", "A=csr"), "^"),
        (("y[i] = A[i,j] * x[j]", "B=csr"), "'B=csr' gives no operand a format"),
        (("y[i] = A[i,j] * x[j]", "csr"), "'csr' gives no operand a format; write A=csr x=csr"),
    ],
    ids=str,
)
def test_mistakes(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    found = cli("explain", *arguments)
    assert (found.status, found.out) == (USAGE, "")
    assert message in found.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("region", ["3", "0", "-1", "conv1"])
def test_unknown_region(cli: Cli, small: None, region: str) -> None:
    found = cli("explain", "gcn", "hidden=8", f"--region={region}")
    assert (found.status, found.out) == (USAGE, "")
    assert f"there is no region '{region}'; 1 to 2, or all" in found.err


def test_a_model_that_cannot_be_captured(cli: Cli, small: None) -> None:
    found = cli("explain", "gcn", "dropout=2")
    assert (found.status, found.out) == (NEGATIVE, "")
    assert "dropout probability has to be between 0 and 1" in found.err


def test_recipes_that_do_not_help(cli: Cli, tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text("schema: 1\nname: bare\nsparsify:\n  - {targets: ['input:x'], format: csr}\n")
    found = cli("explain", bare)
    assert (found.status, found.out) == (USAGE, "")
    assert "names no model; write model: {factory: gcn} into it" in found.err
    assert cli("explain", bare, "--recipe", "gcn").status == USAGE
    missing = cli("explain", tmp_path / "missing.yaml")
    assert missing.status == USAGE
    assert "missing.yaml" in missing.err
