"""What the rules of a recipe pruned, and what they passed over.

In: names and reasons by the position of each rule. Out: the tables of a report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsify.recipe import Rule
from sparsify.report import PassedEntry, PrunedEntry, Report


@dataclass
class Pruning:
    """What pruning did to a model.

    Attributes:
        taken: by the position of a rule the names of parameters that it pruned, with their shares of zeros.
        passed: by the position of a rule the names that it selects and passed over, with reasons.
        unnamed: matrices that products read, and that no rule names.
        is_guess: whether products were not looked at: there was no call.
        is_known: whether `passed` is known.
    """

    taken: dict[int, dict[str, float]] = field(default_factory=dict)
    passed: dict[int, dict[str, str]] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()
    is_guess: bool = False
    is_known: bool = False

    def describe(self, report: Report, rules: Sequence[Rule]) -> None:
        """Writes into a report what was pruned and what was passed over."""
        labels = [rule.id or f"rule {place + 1}" for place, rule in enumerate(rules)]
        report.pruned = [
            PrunedEntry(n, labels[at], zeros)
            for at, found in self.taken.items()
            for n, zeros in found.items()
        ]
        report.passed_over = [
            PassedEntry(name, labels[at], reason)
            for at, found in self.passed.items()
            for name, reason in found.items()
        ]
        report.passed_over += [
            PassedEntry(name, "", "a product reads it, no rule names it") for name in self.unnamed
        ]
