"""Stages of recipes: what becomes of them, and which contradict each other."""

import pytest

from sparsify import recipe
from sparsify.errors import RecipeError
from sparsify.pruning.plot import as_svg, as_text, schedules

AT_ONCE = {
    "id": "first",
    "run": "oneshot",
    "sparsify": [
        {"id": "w", "targets": ["param:*.weight"], "prune": {"method": "sparsegpt", "sparsity": 0.5}}
    ],
}


def training(sparsity=0.8, method="gmp", *, steps=None, **schedule):
    rule = {
        "ref": "w",
        "prune": {"method": method, "sparsity": sparsity},
        "schedule": {"end": 100, **schedule},
    }
    return {"run": "train", "sparsify": [rule], **({} if steps is None else {"steps": steps})}


def read(*stages):
    return recipe.load({"name": "own", "stages": list(stages)})


def test_stages_are_one_rule_with_what_follows():
    found = read(AT_ONCE, training(every=10, steps=200), training(0.9, every=50))
    (rule,) = found.rules
    assert rule.prune.method == "sparsegpt" and rule.schedule is None
    first, second = (part.schedule for part in rule.later)
    assert (first.start_at, first.start, first.end, first.every) == (0.5, 0, 100, 10)
    assert (second.start_at, second.start, second.end) == (0.8, 200, 300)
    schedule = schedules(found)["w"]
    assert [schedule.current_target(at) for at in (0, 100, 199, 200, 300)] == pytest.approx(
        [0.5, 0.8, 0.8, 0.8, 0.9]
    )
    assert as_text(schedules(found)).startswith(
        "w: constant, then cubic, then cubic, from 0.5 to 0.9 zeros, 13 updates"
    )
    assert "cubic, then cubic" in as_svg(schedules(found))
    assert recipe.load(found.model_dump(by_alias=True, exclude_unset=True)).rules == found.rules


def test_lottery_tickets_prune_behind_a_training():
    found = recipe.load("lottery80", search=50, rewind=5)
    (rule,) = found.rules
    assert rule.line == 16
    schedule = schedules(found)["weights"]
    assert (schedule.target(49), schedule.target(50), schedule.end) == (0, 0.8, 50)
    assert rule.schedule.rewind == 5


@pytest.mark.parametrize(
    "stages, text",
    [
        ([AT_ONCE, training(0.3)], "stage 2: 0.3 zeros after the 0.5 of stage 1 .first."),
        ([AT_ONCE, training(**{"from": 0.2})], "`from: 0.2` after the 0.5"),
        ([AT_ONCE, training(steps=50)], "trains 50 steps, and its schedule ends at 100"),
        ([AT_ONCE, training(unit="epoch")], "`unit: step`"),
        (
            [
                AT_ONCE,
                AT_ONCE | {"sparsify": [{"ref": "w", "prune": {"method": "magnitude", "sparsity": 0.9}}]},
            ],
            "twice",
        ),
        (
            [AT_ONCE, {"run": "train", "sparsify": [{"ref": "v", "prune": {"method": "constant"}}]}],
            "`ref: v` is no rule",
        ),
        ([{"run": "train"}, AT_ONCE], "without an end before another stage"),
        ([{"run": "train", "steps": 9}, AT_ONCE], "needs inputs of the model, in the first stage"),
        (
            [
                {"run": "train", "steps": 9},
                AT_ONCE
                | {"sparsify": [{"targets": "param:w", "prune": {"method": "threshold", "threshold": 0.1}}]},
            ],
            "`method: threshold` has no share of zeros to go on from",
        ),
        (
            [
                {"run": "train", "steps": 9}
                | {
                    "sparsify": [
                        {
                            "id": "w",
                            "targets": "param:w",
                            "prune": {"method": "rigl", "sparsity": 0.5},
                            "schedule": {"end": 9, "every": 3},
                        }
                    ]
                },
                {
                    "run": "oneshot",
                    "rewind": 1,
                    "sparsify": [{"ref": "w", "prune": {"method": "magnitude", "sparsity": 0.9}}],
                },
            ],
            "which regrows entries",
        ),
        ([AT_ONCE | {"steps": 5}], "takes no step"),
        ([AT_ONCE | {"rewind": 5}], "is no step of the trainings before"),
        ([{"run": "oneshot", "sparsify": training()["sparsify"]}], "`ref: w` is no rule of an earlier stage"),
        (
            [
                AT_ONCE,
                {
                    "run": "train",
                    "sparsify": [{"ref": "w", "prune": {"method": "magnitude", "sparsity": 0.9}}],
                },
            ],
            "prunes at once; `run: oneshot`, or a `schedule`",
        ),
        (
            [
                AT_ONCE,
                {
                    "run": "train",
                    "sparsify": [
                        {
                            "ref": "w",
                            "prune": {"method": "magnitude", "pattern": "2:4"},
                            "schedule": {"kind": "cubic", "end": 9},
                        }
                    ],
                },
            ],
            "another `pattern`",
        ),
        ([AT_ONCE, {"run": "train", "sparsify": [{"ref": "w", "format": "csr"}]}], "`format` beside it"),
    ],
)
def test_contradictions(stages, text):
    with pytest.raises(RecipeError, match=text):
        read(*stages)


@pytest.mark.parametrize(
    "recipe_of, text",
    [
        ({"stages": [AT_ONCE], "sparsify": [{"targets": "param:w"}]}, "beside `stages`"),
        ({"sparsify": [{"ref": "w", "prune": {"method": "constant"}}]}, "is for rules of later `stages`"),
    ],
)
def test_keys_of_stages_elsewhere(recipe_of, text):
    with pytest.raises(RecipeError, match=text):
        recipe.load({"name": "own", **recipe_of})


def test_rewinding_needs_steps_and_masks_that_shrink():
    rule = {"targets": "param:w", "prune": {"method": "magnitude", "sparsity": 0.9}}
    with pytest.raises(RecipeError, match="before the first update, which is at step 10"):
        recipe.load(
            {"name": "own", "sparsify": [rule | {"schedule": {"start": 10, "end": 10, "rewind": 10}}]}
        )
    regrowing = {"targets": "param:w", "prune": {"method": "rigl", "sparsity": 0.9}}
    with pytest.raises(RecipeError, match="regrows"):
        recipe.load(
            {"name": "own", "sparsify": [regrowing | {"schedule": {"end": 10, "every": 5, "rewind": 2}}]}
        )


@pytest.mark.parametrize("block", [[0, 4], [-1, 4]], ids=str)
def test_blocks_have_entries(block):
    rule = {"targets": "param:w", "prune": {"method": "gmp", "sparsity": 0.5, "pattern": {"block": block}}}
    with pytest.raises(RecipeError, match="at least 1 row and 1 column"):
        recipe.load({"name": "own", "sparsify": [rule | {"schedule": {"end": 10}}]})
