"""Recipes of SparseML and llm-compressor: modifiers that prune become rules, mistakes have a line."""

import textwrap

import pytest
import torch
from torch import nn

import sparsify
from sparsify import recipe as recipes
from sparsify.errors import RecipeError


@pytest.fixture
def imported(tmp_path):
    def run(text, steps_per_epoch=None, name="old.yaml"):
        file = tmp_path / name
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return recipes.import_recipe(file, steps_per_epoch)

    return run


def gradual(keys, kind="GM"):
    """A recipe of one modifier."""
    return f"modifiers:\n  - !{kind}PruningModifier {keys}\n"


GRADUAL = """
    num_epochs: 8
    final: 0.85
    training_modifiers:
      - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(num_epochs)}
    pruning_modifiers:
      - !GMPruningModifier
        params: ["re:bert.encoder.*weight", "head.weight"]
        init_sparsity: 0.05
        final_sparsity: eval(final)
        start_epoch: 1.0
        end_epoch: eval(num_epochs * 0.75 - 1)
        update_frequency: 0.5
      - !ConstantPruningModifier {params: ["re:bert.encoder.*weight", "head.weight"], start_epoch: 6.0}
"""


def test_gradual_pruning_in_steps(imported):
    found = imported(GRADUAL, 100)
    (rule,) = found.recipe["sparsify"]
    assert rule["targets"] == ["re:param:bert.encoder.*weight", "param:head.weight"]
    assert rule["prune"] == {"method": "gmp", "sparsity": 0.85}
    assert rule["schedule"] == {"kind": "cubic", "from": 0.05, "start": 100, "end": 500, "every": 50}
    assert [note.partition(":")[0] for note in found.notes] == [
        "EpochRangeModifier (line 5)",
        "ConstantPruningModifier (line 14)",
    ]


def test_whole_epochs_stay_epochs(imported):
    (rule,) = imported(GRADUAL.replace("0.5", "2")).recipe["sparsify"]
    assert rule["schedule"] == {
        "kind": "cubic",
        "from": 0.05,
        "start": 1,
        "end": 5,
        "every": 2,
        "unit": "epoch",
    }


@pytest.mark.parametrize(
    ("mask", "pattern"),
    [("unstructured", None), ("block4", {"block": [1, 4]}), ("'2:4'", "2:4"), ("filter", "row")],
)
def test_structures(imported, mask, pattern):
    text = gradual(f"{{params: __ALL_PRUNABLE__, final_sparsity: 0.5, end_epoch: 4, mask_type: {mask}}}")
    (rule,) = imported(text).recipe["sparsify"]
    assert rule["prune"].get("pattern") == pattern
    assert rule["types"] == ["Linear", "Conv1d", "Conv2d", "Conv3d"]


def test_one_shot_stages_of_llm_compressor(imported):
    found = imported(
        r"""
        sparsity_stage:
          obcq_modifiers:
            SparseGPTModifier:
              sparsity: 0.5
              mask_structure: "2:4"
              targets: ['re:model.layers.\d+$']
              ignore: ["lm_head"]
        finetuning_stage:
          finetuning_modifiers:
            ConstantPruningModifier: {targets: ["Linear"], start: 0}
        """
    )
    first, second = found.recipe["sparsify"]
    assert first["prune"] == {"method": "sparsegpt", "pattern": "2:4"}
    assert first["targets"] == [r"re:param:model.layers.\d+\..*weight"]
    assert first["ignore"] == ["param:lm_head.*"]
    assert second["prune"] == {"method": "constant"}


def test_front_matter_of_markdown(imported):
    text = (
        f"---\n{gradual('{params: __ALL__, final_sparsity: 0.9, end_epoch: 3}', 'Movement')}---\n# A model\n"
    )
    (rule,) = imported(text, name="recipe.md").recipe["sparsify"]
    assert rule["prune"] == {"method": "movement", "sparsity": 0.9}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (gradual("{params: __ALL__, end_epoch: 3}"), ":2:.*no `final_sparsity`"),
        (gradual("{params: __ALL__, final_sparsity: 0.9}"), "no `end_epoch`"),
        (GRADUAL, "parts of epochs"),
        (GRADUAL.replace("eval(final)", "eval(open('x'))"), "is no number"),
        (GRADUAL.replace("final: 0.85", "final: eval(final)"), "is no number"),
        (GRADUAL.replace("update", "inter_func: inverse_cubic\n        update"), "linear or cubic"),
        (gradual("{params: w, mask_type: channel, final_sparsity: 1, end_epoch: 1}"), "'channel'"),
        ("modifiers:\n  - !QuantizationModifier {start_epoch: 0}\n", "nothing in it prunes"),
        ("modifiers:\n  - !OBSPruningModifier {start_epoch: 0}\n", "no method here"),
        ("modifiers: [", "not valid YAML"),
        (gradual("{params: __ALL__, final_sparsity: 2, end_epoch: 3}"), "as a recipe of sparsify"),
        ("", "nothing in it prunes"),
        ("- 3", "nothing in it prunes"),
    ],
)  # fmt: skip
def test_mistakes(imported, text, words):
    with pytest.raises(RecipeError, match=words):
        imported(text)


def test_a_pruner_follows_an_imported_recipe(imported):
    text = gradual(
        "{params: ['re:.*weight'], init_sparsity: 0.5, final_sparsity: 0.9, start_epoch: 0, end_epoch: 2}"
    )
    net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    pruner = sparsify.Pruner(net, optimizer, imported(text, 3).recipe)
    for _ in range(7):
        net(torch.randn(4, 20)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()
    assert int((net[0].weight == 0).sum()) == 540
