"""Folding of a recipe's stages into rules: each rule includes the effects of later stages on its tensors.

In: a stage that prunes to 0.5 at once, and a training whose rule refers to it and reaches 0.8 after 1000 steps.
Out: the rule of the first stage, whose `later` is `{prune: {method: gmp, sparsity: 0.8}, schedule: {from: 0.5, ...}}`.

Folded schedules count steps from the start of the whole training: a stage starts at the end of the previous stage.
Contradictory stages are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsify.recipe.schema import GRADUAL, OF_SIZE, Prune, Rule, ScheduleSpec, Stage
from sparsify.recipe.suggestion import nearest

NEAR = 1e-6


@dataclass
class Known:
    """A rule, its parts by stage, the sparsity reached so far, and the label of the last stage."""

    rule: Rule
    parts: list[Rule] = field(default_factory=list)
    share: float = 0.0
    label: str = "the start"


def folded(stages: Sequence[Stage]) -> tuple[Rule, ...]:
    """Rules of all stages; each tensor is in one rule.

    Raises:
        ValueError: stages contradict each other.
    """
    found: list[Known] = []
    start = 0
    for number, stage in enumerate(stages, 1):
        label = f"stage {number}" if stage.id is None else f"stage {number} ({stage.id})"
        _require_stage(stage, label, start)
        changed: list[Known] = []
        for rule in stage.sparsify:
            known = _known(found, rule, label, start)
            if any(known is other for other in changed):
                raise ValueError(f"{label}: two rules with `ref: {rule.ref}`; one of them")
            changed.append(known)
            if rule.prune is not None:
                _add(known, rule, rule.prune, stage, label, start)
        found += [known for known in changed if not any(known is other for other in found)]
        start += _length(stage, label, is_last=number == len(stages))
    return tuple(_joined(known) for known in found)


def _require_stage(stage: Stage, label: str, start: int) -> None:
    """Raises if keys of a stage contradict each other."""
    if stage.run == "oneshot" and stage.steps is not None:
        raise ValueError(f"{label}: `run: oneshot` takes no step; leave `steps` out, or `run: train`")
    if stage.rewind is None:
        return
    if stage.run == "train":
        raise ValueError(
            f"{label}: `rewind` is for `run: oneshot`; in a training write `schedule: {{rewind: ...}}`"
        )
    if stage.rewind >= start:
        raise ValueError(
            f"{label}: `rewind: {stage.rewind}` is no step of the trainings before, which end at step {start}"
        )


def _known(found: Sequence[Known], rule: Rule, label: str, start: int) -> Known:
    """Earlier rule and stages for the tensors of a rule.

    Raises:
        ValueError: the rule refers to none, or to one without `prune`; a rule without `prune` in a later stage.
    """
    if rule.ref is None:
        if rule.prune is None and start:
            raise ValueError(f"{label}: a rule without `prune` after step 0; write it into the first stage")
        return Known(rule)
    names = [known.rule.id for known in found if known.rule.id is not None]
    match = next((known for known in found if known.rule.id == rule.ref), None)
    if match is None:
        hint = nearest(rule.ref, names) if names else "; rules to refer to have an `id`"
        raise ValueError(f"{label}: `ref: {rule.ref}` is no rule of an earlier stage{hint}")
    if match.rule.prune is None:
        raise ValueError(
            f"{label}: `ref: {rule.ref}` is a rule without `prune`; name the tensors in `targets`"
        )
    return match


def _add(known: Known, rule: Rule, prune: Prune, stage: Stage, label: str, start: int) -> None:
    """Adds the effect of a stage on the tensors of a rule.

    Raises:
        ValueError: it contradicts the kind of the stage, or the results of earlier stages.
    """
    pattern = next((part.prune.pattern for part in known.parts if part.prune is not None), None)
    if known.share > 0 and prune.method != "constant" and prune.pattern != pattern:
        raise ValueError(f"{label}: another `pattern` than in {known.label}; zeros that are there stay")
    share = share_of(prune)
    if share is not None and share < known.share - NEAR:
        raise ValueError(
            f"{label}: {share:g} zeros after the {known.share:g} of {known.label}; a share that is not smaller"
        )
    part = _at_once(rule, prune, stage, label, start, known) if stage.run == "oneshot" else None
    if part is None and stage.run == "train":
        part = _training(rule, prune, label, start, known)
    if part is not None:
        known.parts.append(part)
        known.label = label
        known.share = known.share if share is None else share


def _at_once(rule: Rule, prune: Prune, stage: Stage, label: str, start: int, known: Known) -> Rule:
    """Rule that makes all zeros in one step."""
    if rule.schedule is not None or prune.method in GRADUAL:
        asked = "a `schedule`" if rule.schedule is not None else f"`method: {prune.method}`"
        raise ValueError(f"{label}: {asked} changes masks over steps; `run: train`")
    if not start:
        if known.parts:
            raise ValueError(f"{label}: zeros are made at step 0 twice; a `run: train` between both")
        return rule
    if prune.method in OF_SIZE:
        raise ValueError(
            f"{label}: `method: {prune.method}` has no share of zeros to go on from; in the first stage alone"
        )
    if stage.rewind is not None and any(
        part.prune is not None and part.prune.regrows for part in known.parts
    ):
        raise ValueError(
            f"{label}: `rewind: {stage.rewind}` after {known.label}, which regrows entries; "
            "a method that does not regrow"
        )
    if prune.is_calibrated:
        raise ValueError(
            f"{label}: `method: {prune.method}` needs inputs of the model, in the first stage alone"
        )
    spec = ScheduleSpec(kind="oneshot", start=start, end=start, rewind=stage.rewind)
    return rule.model_copy(update={"schedule": spec.model_copy(update={"start_at": known.share})})


def _training(rule: Rule, prune: Prune, label: str, start: int, known: Known) -> Rule | None:
    """Rule with a schedule counted from the start of the training; `None` if masks stay constant."""
    if prune.method == "constant" and rule.schedule is None:
        return None if known.parts or start else rule
    spec = rule.schedule
    if spec is None or prune.is_calibrated:
        raise ValueError(f"{label}: `method: {prune.method}` prunes at once; `run: oneshot`, or a `schedule`")
    if spec.unit == "epoch":
        raise ValueError(f"{label}: its schedule counts epochs, and stages count steps; `unit: step`")
    if known.parts or start:
        if spec.start_at is not None and abs(spec.start_at - known.share) > NEAR:
            raise ValueError(
                f"{label}: `from: {spec.start_at:g}` after the {known.share:g} of {known.label}; leave `from` out"
            )
        moved = {
            "start_at": known.share,
            "start": spec.start + start,
            "end": (spec.start if spec.end is None else spec.end) + start,
            "rewind": None if spec.rewind is None else spec.rewind + start,
        }
        return rule.model_copy(update={"schedule": spec.model_copy(update=moved)})
    return rule


def _length(stage: Stage, label: str, *, is_last: bool) -> int:
    """Number of steps of a stage.

    Raises:
        ValueError: a training without an end before another stage, or with an end before its schedules'.
    """
    if stage.run == "oneshot":
        return 0
    specs = [rule.schedule for rule in stage.sparsify if rule.schedule is not None]
    last = max((spec.start if spec.end is None else spec.end for spec in specs), default=0)
    if stage.steps is None and not last and not is_last:
        raise ValueError(f"{label}: a training without an end before another stage; `steps: 1000`")
    if stage.steps is not None and stage.steps < last:
        raise ValueError(
            f"{label}: trains {stage.steps} steps, and its schedule ends at {last}; more `steps`"
        )
    return stage.steps or last


def share_of(prune: Prune) -> float | None:
    """Requested sparsity; `None` to keep existing zeros."""
    group = prune.pattern.nm if prune.pattern else None
    return prune.sparsity if group is None else 1 - group.keep / group.of


def _joined(known: Known) -> Rule:
    """Rule with the effects of later stages."""
    if not known.parts:
        return known.rule
    first, *later = known.parts
    found = known.rule.model_copy(update={"prune": first.prune, "schedule": first.schedule})
    found._later = tuple(later)
    return found
