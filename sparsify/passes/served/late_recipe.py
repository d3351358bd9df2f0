"""The arguments of `apply` for a served model, with a recipe that is parsed at its first use.

In: the text of a recipe file. Out: a request. Serving a call reads no rule, and a worker need not hold the parser.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from sparsify import recipe as recipes
from sparsify.passes.capture.draft import ApplyRequest, Pruning
from sparsify.report import Report

if TYPE_CHECKING:
    from sparsify.recipe import Recipe


class LateRecipe:
    """A recipe file with the attributes of its `Recipe`.

    Args:
        text: YAML.
        path: path of the file, for errors.
    """

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path

    @cached_property
    def _recipe(self) -> "Recipe":
        return recipes.loads(self._text, self._path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._recipe, name)


@dataclass(frozen=True)
class ServedRequest(ApplyRequest):
    """The arguments of `apply` for a served model; the reports of its graphs are in its folder."""

    def report(self, model: str) -> Report:
        """A new report without rules."""
        return Report(model, "")


def served_request(text: str, path: str, passed: dict[int, dict[str, str]] | None) -> ServedRequest:
    """The request of a served model.

    Args:
        text: YAML of the recipe.
        path: path of the recipe file, for errors.
        passed: names that rules select and pass over, with reasons, by rule position; None if unknown.
    """
    recipe = cast("Recipe", LateRecipe(text, path))
    pruning = Pruning(passed=passed or {}, is_known=passed is not None)
    return ServedRequest(recipe, None, False, False, False, pruning=pruning, is_calibrated=True)
