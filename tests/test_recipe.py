"""Recipes: reading, substitution, errors with positions, built-in names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparsify import recipe
from sparsify.errors import RecipeError

HEAD = "schema: 1\nname: example\n"
BERT = """\
schema: 1
name: bert-2of4
args: {keep: 2, of: 4, low: 0.1}
sparsify:
  - id: encoder-linears
    targets: ["param:encoder.layer.*.weight"]
    types: [Linear]
    ignore: ["param:pooler.*"]
    prune: {method: magnitude, pattern: {nm: {keep: "${keep}", of: "${of}"}}, dim: in}
    format: auto
    when: {min_density: "${low}"}
"""


def test_built_in_recipes_load_and_know_their_lines():
    names = [
        "autoencoder",
        "bert",
        "dlrm",
        "gat",
        "gcn",
        "gin",
        "gmp90",
        "gpt",
        "lenet",
        "lottery80",
        "minilm",
        "mlp",
        "resnet20",
    ]
    names += ["resnet50", "rigl90", "sage", "set90", "vit"]
    assert recipe.names() == names
    gcn = recipe.load("gcn")
    assert gcn.name == "gcn"
    assert gcn.file.endswith("gcn.yaml")
    text = Path(gcn.file).read_text(encoding="utf-8").splitlines()
    assert "id: adjacency" in text[gcn.rules[0].line - 1]
    assert text[0].startswith("# yaml-language-server: $schema=")
    assert gcn.rules[1].when is not None
    assert gcn.rules[1].when.max_density == 0.20


def test_shipped_schema_is_the_current_one():
    shipped = json.loads((recipe.path("gcn").parent / "schema.json").read_text(encoding="utf-8"))
    assert shipped == recipe.json_schema()
    assert "sparsify" in shipped["properties"]
    assert "schema" in shipped["properties"]


def test_typed_arguments():
    loaded = recipe.loads(BERT, low="0.25")
    assert loaded.rules[0].when is not None
    assert loaded.rules[0].when.min_density == 0.25
    prune = loaded.rules[0].prune
    assert prune is not None
    assert prune.pattern is not None
    assert prune.pattern.nm is not None
    assert (prune.pattern.nm.keep, prune.pattern.nm.of) == (2, 4)


def test_an_argument_inside_text_becomes_text():
    loaded = recipe.loads(
        HEAD + "args: {layer: 3}\nsparsify: [{targets: ['param:layer.${layer}.*']}]\n", layer=7
    )
    assert loaded.rules[0].targets == ("param:layer.7.*",)


def test_yaml_is_1_2():
    loaded = recipe.loads(HEAD + "sparsify: [{targets: a, prune: {method: magnitude, pattern: 2:4}}]\n")
    prune = loaded.rules[0].prune
    assert prune is not None
    assert prune.pattern is not None
    assert prune.pattern.nm is not None
    assert (prune.pattern.nm.keep, prune.pattern.nm.of) == (2, 4)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        (HEAD + "sparsify:\n  - targts: [a]\n", 4, 5, "unknown key 'targts'; did you mean 'targets'"),
        (HEAD + "sparsify:\n  - targets: [a]\n    role: adjacncy\n", 5, 5, "did you mean 'adjacency'"),
        (HEAD + "sparsify:\n  - role: weight\n", 4, 5, "a rule needs `targets`"),
        (HEAD + "sparsify: [{targets: [a], when: {max_densty: 1}}]\n", 3, 34, "did you mean 'max_density'"),
        (HEAD + "name: again\n", 3, 1, "the key 'name' stands twice, first in line 2"),
        ("schema: 2\nname: x\n", 1, 1, "schema: 2 is not known"),
        ("schema: 1\n", 1, 1, "the key 'name' is missing"),
        (
            "schema: 1\nname: !!python/object:os.system x\n",
            2,
            1,
            "the tag !!python/object:os.system is refused",
        ),
        ("schema: 1\nname: !include other.yaml\n", 2, 1, "the tag !include is refused"),
        (HEAD + "base: &b {a: 1}\nargs: {<<: *b}\n", 4, 8, "refused"),
        (
            HEAD + "args: {keep: 2}\nsparsify: [{targets: a, format: '${kep}'}]\n",
            4,
            25,
            "did you mean 'keep'",
        ),
        (
            HEAD + "sparsify: [{targets: a, prune: {method: magnitude, pattern: 2:4, sparsity: 0.9}}]\n",
            3,
            25,
            "contradicts",
        ),
        (
            HEAD + "sparsify: [{targets: a, prune: {method: magnitude, pattern: 5:4}}]\n",
            3,
            52,
            "n kept of every m",
        ),
        (HEAD + "sparsify: [{targets: a, source: prune}]\n", 3, 12, "needs a `prune` section"),
        ("a: [\n", 2, 1, "not valid YAML"),
        ("", 0, 0, "the file is empty"),
        ("- 1\n", 1, 1, "a recipe is a mapping"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) > 60 else str(value)[:30],
)
def test_errors_say_where_and_what(text, line, column, words):
    with pytest.raises(RecipeError) as caught:
        recipe.loads(text, "r.yaml")
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)


def test_unknown_names_and_overrides_get_suggestions():
    with pytest.raises(RecipeError, match="did you mean 'gcn'"):
        recipe.load("gcm")
    with pytest.raises(RecipeError, match="no argument 'kep'; did you mean 'keep'"):
        recipe.loads(BERT, kep=4)


def test_a_mapping_and_a_recipe_load_too():
    data = {"schema": 1, "name": "own", "sparsify": [{"targets": "input:adj", "format": "csr"}]}
    loaded = recipe.load(data)
    assert recipe.load(loaded) is loaded
    assert loaded.rules[0].targets == ("input:adj",)
    assert loaded.rules[0].line == 0
    assert data["sparsify"] == [{"targets": "input:adj", "format": "csr"}]


def test_copy_refuses_to_overwrite(tmp_path):
    written = recipe.copy("gcn", tmp_path)
    assert recipe.load(written).name == "gcn"
    with pytest.raises(RecipeError, match="exists already"):
        recipe.copy("gcn", tmp_path)


def test_no_torch_is_imported():
    code = "import sys, sparsify.recipe as r; r.load('gcn'); r.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
