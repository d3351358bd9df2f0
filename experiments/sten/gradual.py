"""Recipes and rows of fine-tuning under zeros: gradual magnitude pruning, or groups n:m:g stage by stage.

In: `recipe("n:m:g", 90, 140, stages, "Linear")`. Out: the recipe of a training of 140 steps.
Entries and blocks are pruned gradually by magnitude (Zhu and Gupta, 2018). Groups n:m:g reach their sparsity in one
step, so the stages of a network are pruned one after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from ..reproduce.figure import Outcome, Row, Setting

Structure = Literal["unstructured", "n:m:g", "filters", "blocks"]
UPDATES: Final = 20
# Groups by percentage of zeros.
GROUPS: Final = {50: "2:4:4", 75: "1:4:4", 90: "1:10:4", 95: "1:20:4"}
# Units of pruning; a filter is the set of all weights of an output channel.
PATTERNS: Final[Mapping[str, Mapping[str, Any]]] = {
    "unstructured": {},
    "filters": {"pattern": "row"},
    "blocks": {"pattern": {"block": [16, 16]}},
}


def recipe(
    structure: Structure, percent: int, count: int, stages: Sequence[str], types: str
) -> dict[str, Any]:
    """Recipe of a training; masks change until three quarters of its steps.

    Args:
        structure: structure of the zeros.
        percent: percentage of zero weights at the end.
        count: steps of the training; 0 for all zeros at once.
        stages: prefixes of the weights' names, in the order of the network.
        types: class of the weights' modules.

    >>> recipe("n:m:g", 75, 8, ["a.", "b."], "Linear")["sparsify"][1]["schedule"]
    {'kind': 'oneshot', 'start': 6}
    """
    end = max(1, count * 3 // 4)
    share = {"sparsity": percent / 100, **PATTERNS.get(structure, {})}
    groups = {"method": "magnitude", "pattern": GROUPS[percent]} if structure == "n:m:g" else {}
    if not count:
        rules = [_rule(stages, types, groups or {"method": "magnitude", **share})]
    elif groups:
        last = max(1, len(stages) - 1)
        rules = [
            _rule([stage], types, groups, {"kind": "oneshot", "start": end * place // last})
            for place, stage in enumerate(stages)
        ]
    else:
        schedule = {"kind": "cubic", "from": 0.0, "end": end, "every": max(1, end // UPDATES)}
        rules = [_rule(stages, types, {"method": "gmp", **share}, schedule)]
    return {"schema": 1, "name": f"{structure}-{percent}", "seed": 0, "sparsify": rules}


def given(stages: Sequence[str], types: str) -> dict[str, Any]:
    """Recipe with the zeros of the weights as given."""
    rule = {"targets": targets(stages), "types": [types], "role": "weight", "source": "given"}
    return {"schema": 1, "name": "fine-tuned", "sparsify": [rule]}


def targets(stages: Sequence[str]) -> list[str]:
    """Targets of the weights with name prefixes `stages`."""
    return [f"param:{stage}*.weight" for stage in stages]


def _rule(
    stages: Sequence[str], types: str, prune: Mapping[str, Any], schedule: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A rule over the weights of some stages."""
    return {
        "targets": targets(stages),
        "types": [types],
        "role": "weight",
        "prune": dict(prune),
        **({"schedule": dict(schedule)} if schedule else {}),
    }


def rows_of(
    structures: Sequence[Structure],
    percents: Sequence[int],
    measure: Callable[[Structure, int, Setting], Outcome],
    dataset: str,
    files: Sequence[str],
    seconds: float,
) -> list[Row]:
    """A row for each structure at each percentage of zeros.

    Args:
        structures: structures of the zeros.
        percents: percentages of zero weights.
        measure: function that measures a row.
        dataset: name of the data set.
        files: required files under the data root.
        seconds: expected time of a row.
    """
    return [
        Row(f"{structure} {percent} %", dataset, partial(measure, structure, percent), tuple(files), seconds)
        for structure in structures
        for percent in percents
    ]
