"""Keys of recipes: each that the schema has is read by something, and each other one is refused with a reason."""

import sys
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

import sparsify
from sparsify import recipe
from sparsify.errors import RecipeError
from sparsify.recipe import schema
from sparsify.recipe.parse import section_at
from sparsify.recipe.unsupported import REFUSED
from sparsify.runner.validate import complaints
from sparsify.sparsification.masks import patterns

HEAD = "schema: 1\nname: example\n"
OP = "op:scaled_dot_product_attention"
# What people, `sparsify run` and `sparsify.shard` (tests/scale) read, not `apply`.
ELSEWHERE = {
    ("Recipe", "version"), ("Recipe", "description"), ("Recipe", "source"), ("Recipe", "args"), ("Recipe", "model"),
    ("Recipe", "data"), ("Factory", "factory"), ("Factory", "args"), ("Data", "name"),
    ("Shard", "graph"), ("Shard", "memory"), ("Shard", "linear"), ("Shard", "timeout"),
}  # fmt: skip
# Read when a recipe is validated: its other sections decide what their values say.
VALIDATED = {
    ("Verify", "against"), ("Prune", "method"), ("ScheduleSpec", "to"), ("Rule", "ref"), ("Stage", "id"),
    ("Stage", "run"), ("Stage", "steps"), ("Stage", "rewind"), ("Stage", "sparsify"), ("Prune", "threshold"),
    ("Prune", "keep"),
}  # fmt: skip


class Model(nn.Module):
    """Attention, a product with an input and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.fourth = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        q = self.first(x)
        attended = nn.functional.scaled_dot_product_attention(q, q, q)
        return self.fourth(self.third(adj @ self.second(attended).relu()))


RULES: list[dict[str, Any]] = [
    {"id": "a", "targets": "input:adj", "role": "adjacency", "static": True, "when": {"max_density": 0.5}},
    {"targets": OP, "mask": {"kind": "bigbird", "window": 1, "block": 4}, "source": "mask"},
    {"targets": "param:first.weight", "prune": {"method": "magnitude", "pattern": "2:4:4", "dim": "out"}},
    {
        "targets": "param:*.weight",
        "types": "Linear",
        "ignore": ["param:first.*", "param:third.*", "param:fourth.*"],
        "prune": {
            "method": "block_magnitude",
            "sparsity": 0.5,
            "pattern": {"block": [4, 4]},
            "scope": "global",
        },
        "format": {"levels": ["dense", "compressed"], "ordering": [1, 0]},
        "when": {"min_density": 0.1, "min_size": 1},
        "ties": "share",
        "dtype": "bfloat16",
    },
    {
        "targets": "param:third.weight",
        "ties": "untie",
        "prune": {
            "method": "rigl",
            "sparsity": 0.5,
            "fraction": 0.2,
            "score": "magnitude",
            "regrow": "random",
        },
        "schedule": {"kind": "cosine", "from": 0.5, "start": 0, "end": 4, "every": 2, "unit": "epoch"},
    },
    {"targets": "param:fourth.weight", "ties": "share", "prune": {"method": "sparsegpt", "pattern": "2:4"}},
    {"targets": "input:nothing", "optional": True},
    {
        "targets": "op:relu",
        "inline": {"threshold": 0.1},
        "temporary": "csr",
        "external": "keep_all",
        "format": "csr",
        "grad": {"inline": "keep_all", "temporary": "csr", "external": {"top_k": 2}, "format": "same"},
    },
]
SECTIONS = {
    "fuse": {"across": "functions", "max_einsums": 2},
    "compile": {"memory": "fast", "threads": 1},
    "calibration": {"samples": 12, "length": 24, "seed": 0, "split": "test"},
}


def sections() -> dict[str, type[schema.Section]]:
    """The sections of a recipe by name."""
    kinds = {name: kind for name, kind in vars(schema).items() if isinstance(kind, type)}
    return {n: k for n, k in kinds.items() if issubclass(k, schema.Section) and k is not schema.Section}


def test_every_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, read = sections(), set[tuple[str, str]]()

    def noted(self: Any, name: str) -> Any:
        if "/sparsify/" in sys._getframe(1).f_code.co_filename:  # and not by pydantic
            read.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    dense, adjacency = Model().eval(), torch.zeros(12, 12).fill_diagonal_(1.0)
    given = recipe.load({"schema": 1, "name": "all", "seed": 1, "sparsify": RULES, **SECTIONS})
    monkeypatch.setattr(schema.Section, "__getattribute__", noted, raising=False)
    example = torch.randn(12, 24), adjacency
    sparsify.apply(dense, given, example, calibration=[example])
    known = {(name, key) for name, kind in kinds.items() for key in kind.model_fields}
    assert known - read - ELSEWHERE - VALIDATED == set()


def test_the_json_schema_has_these_keys_alone() -> None:
    kinds, printed = sections(), recipe.json_schema()
    tables = {"Recipe": printed, **printed["$defs"]}
    assert {name: sorted(table["properties"]) for name, table in tables.items()} == {
        name: sorted(field.alias or key for key, field in kind.model_fields.items())
        for name, kind in kinds.items()
    }
    for section, key in REFUSED:
        name, _, value = key.partition(": ")
        assert section in tables
        found = tables[section]["properties"].get(name)
        assert value not in str(found) if value else found is None


def test_kinds_of_masks_have_the_numbers_of_their_functions() -> None:
    assert set(schema.MASK_NUMBERS) == set(get_args(schema.MaskKind))
    for kind, numbers in schema.MASK_NUMBERS.items():
        own = () if kind == "given" else signature(patterns.KINDS[kind]).parameters
        assert set(numbers) == {name.rstrip("_") for name in own} - {"rows", "columns"}


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("stages: [{sparsify: []}]", 3, 10, "the key 'run' is missing"),
        ("verify: {against: masked_dense}", 3, 10, "`against: masked_dense` is not supported; `against: dense`"),
        ("verify: {against: dense_with_mask}", 1, 1, "no rule has a `mask`; write `against: dense`"),
        ("compile: {backends: [torch]}", 3, 11, "without `own` leaves no kernels; add `own`"),
        ("data: {name: cora, size: 3}", 3, 20, "unknown key 'size'"),
        ("ref: b", 4, 5, "`ref: b` takes the tensors of an earlier rule and has `targets` beside it"),
        ("schedule: {kind: cubic}", 4, 5, "`schedule` says when `prune` makes zeros, and the rule has no `prune`"),
        ("prune: {method: rigl, sparsity: 0.5}", 4, 5, "`method: rigl` changes masks over steps; `schedule: {end"),
        ("prune: {method: set, pattern: 2:4}", 4, 18, "n:m groups do not regrow"),
        ("prune: {method: rigl, sparsity: 1}", 4, 18, "leaves no entries that could regrow"),
        ("prune: {method: magnitude, sparsity: 0.5}, schedule: {from: 0.9}", 4, 5, "is more than the 0.5 that"),
        ("prune: {method: magnitude, sparsity: 0.5}, schedule: {to: 0.9}", 4, 5, "`schedule: to: 0.9` contradicts"),
        ("prune: {method: gmp, sparsity: 0.5}, schedule: {start: 9, end: 3}", 4, 55, "before its start at 9"),
        ("inline: {method: magnitude}", 4, 18, "the sparsifier 'method' is not known"),
        ("grad: {method: same}", 4, 25, "unknown key 'method'"),
        ("role: gradient", 4, 18, "`role: gradient` is not supported: `grad` of a rule says"),
        ("format: {levels: [dense], block: [2]}", 4, 44, "write the blocks into the levels, `i/16: dense`"),
        ("source: computed", 4, 5, "`source: computed` is for gates"),
        ("source: computed, role: weight", 4, 5, "`source: computed` is for gates"),
        ("prune: {method: magnitude, sparsity: 0.5, keep: 2}", 4, 18, "`keep` is not for `method: magnitude`"),
        ("prune: {method: topk}", 4, 18, "`method: topk` needs `keep`"),
        ("prune: {method: topk, keep: 2, dim: 1}", 4, 18, "`in` or `out`"),
        ("prune: {method: threshold, threshold: 0.1, sparsity: 0.5}", 4, 18, "`sparsity` with `method: threshold`"),
        ("prune: {method: threshold, threshold: 0.1}, schedule: {end: 3}", 4, 5, "has no share of zeros"),
        ("prune: {method: magnitude}", 4, 18, "needs `sparsity`, the share of zeros"),
        ("prune: {method: magnitude, sparsity: true}", 4, 45, "true is a truth value; a number is wanted"),
        ("prune: {method: magnitude, sparsity: 0.5, pattern: {block: [4]}}", 4, 70, "block: entry 2 is missing"),
        ("prune: {method: block_magnitude, sparsity: 0.5}", 4, 18, "needs `pattern: {block: [16, 16]}`"),
        ("prune: {method: magnitude, sparsity: 0.5, dim: in}", 4, 18, "`dim` is the mode along which n:m"),
        ("prune: {method: magnitude, pattern: 2:4, scope: global}", 4, 18, "n:m groups have none"),
        ("prune: {method: magnitude, pattern: 4:4}", 4, 45, "keeps all of every 4, which prunes nothing"),
        ("prune: {method: magnitude, pattern: 2:4:4, dim: 2}", 4, 18, "n:m:g groups are for matrices"),
        ("prune: {method: magnitude, sparsity: 0.5}, mask: {kind: causal}", 4, 5, "write a rule for each"),
        ("mask: {kind: bigbird, windw: 3}", 4, 18, "the mask bigbird has no 'windw'; did you mean 'window'"),
        ("mask: {kind: given, block: 3}", 4, 18, "the mask given has no 'block'"),
        ("mask: {kind: causal}, format: csr", 4, 5, "`format` of a mask follows from its `block`"),
        ("mask: {kind: causal}, when: {min_size: 3}", 4, 5, "`when` needs entries that are known ahead"),
        ("mask: {kind: causal}, reorder: rcm", 4, 5, "`reorder` is for adjacencies"),
        ("mask: {kind: causal}, static: true", 4, 5, "`static: true` is for inputs"),
        ("ties: share", 4, 5, "`ties` is for rules that change weights"),
        ("targets: 'param:w', static: true", 4, 5, "`static: true` is for inputs, and this rule names none"),
        ("targets: 'param:w', mask: {kind: causal}", 4, 5, "`mask` is for attention"),
        ("targets: 'input:x', prune: {method: magnitude, sparsity: 0.5}", 4, 5, "input:x is none; name them"),
        ("targets: 'input:x', dtype: int8", 4, 5, "`dtype: int8` rounds parameters, and input:x is none"),
        ("targets: []", 4, 5, "a rule needs `targets`"),
        ("format: crs", 4, 5, "no format is called 'crs'"),
        ("mask: {kind: causal, block: 0}", 4, 5, "mask: block=0; a whole number from 1"),
        ("mask: {kind: from_file}", 4, 5, "mask: the mask from_file needs 'path'"),
    ],
)  # fmt: skip
def test_validate_finds_what_apply_cannot_do(
    tmp_path: Path, text: str, line: int, column: int, words: str
) -> None:
    file = tmp_path / "mine.yaml"
    is_section = text.split(":")[0] in ("stages", "verify", "compile", "data")
    rule = text if text.startswith("targets") else f"targets: a, {text}"
    file.write_text(f"{HEAD}{text}\n" if is_section else f"{HEAD}sparsify:\n  - {{{rule}}}\n")
    (found,) = complaints(str(file))
    assert words in found
    assert found.startswith(f"{file}:{line}:{column}: ")


def test_mappings_are_refused_too() -> None:
    with pytest.raises(RecipeError, match="`ref: b` takes the tensors"):
        recipe.load({"schema": 1, "name": "x", "sparsify": [{"targets": "a", "ref": "b"}]})


def test_masks_may_say_that_they_are_compared_with() -> None:
    rules = [{"targets": OP, "mask": {"kind": "causal"}}]
    loaded = recipe.load({"name": "x", "sparsify": rules, "verify": {"against": "dense_with_mask"}})
    assert loaded.verify.against == "dense_with_mask"


def test_sections_at_paths() -> None:
    assert section_at(("sparsify", 0, "format")) is recipe.FormatSpec
    assert section_at(("sparsify", 0, "prune", "pattern", "nm")) is schema.GroupPattern


class Product(nn.Module):
    """A product and a function of it, a call of one module."""

    def forward(self, adj: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (adj @ x).sigmoid()


class Layer(nn.Module):
    """The product, and a function in another module."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.tanh = Product(), nn.Tanh()

    def forward(self, adj: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tanh(self.product(adj, x))
        return found


class Whole(nn.Module):
    """A model whose modules all lie in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, adj: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(adj, x)
        return found


@pytest.mark.parametrize("across", ["functions", "modules"])
def test_programs_end_with_a_call_of_a_module(across: str) -> None:
    rules = {"name": "x", "sparsify": [{"targets": "input:adj"}], "fuse": {"across": across}}
    sparse = sparsify.apply(Whole().eval(), rules, (torch.eye(8), torch.randn(8, 4)))
    (entry,) = sparse.report.regions
    assert "sigmoid" in entry.einsum
    assert ("tanh" in entry.einsum) == (across == "modules")
