"""Static errors of a recipe file, found without a model: schema, formats, masks, the model's name.

In: `complaints("mine.yaml")`. Out: `["mine.yaml:5:5: format: no level is called 'crs'; ..."]`, empty when all is well.
Recipes without masks need no torch.
"""

from sparsify import recipe as recipes
from sparsify.errors import RecipeError, SparsifyError
from sparsify.models import registry
from sparsify.recipe import Recipe
from sparsify.storage.recipe_format import recipe_format


def complaints(recipe: str) -> list[str]:
    """All complaints about a file or built-in recipe, each with file, line and column."""
    try:
        loaded = recipes.load(recipe)
    except RecipeError as error:
        return str(error).splitlines()
    return [str(error) for error in [*wrong_formats(loaded), *wrong_masks(loaded), *wrong_model(loaded)]]


def wrong_formats(recipe: Recipe) -> list[RecipeError]:
    """Errors of rules with an unknown format."""
    found = []
    for rule in recipe.rules:
        try:
            if rule.format != "auto":
                recipe_format(rule.format)
        except SparsifyError as error:
            found.append(RecipeError(f"format: {error}", recipe.file, rule.line, rule.column))
    return found


def wrong_masks(recipe: Recipe) -> list[RecipeError]:
    """Errors of rules with an impossible mask: numbers too small or a missing file."""
    found = []
    for rule in recipe.rules:
        if rule.mask is not None:
            from sparsify.passes.rules.mark import mask_spec

            try:
                mask_spec(recipe, rule)
            except RecipeError as error:
                found.append(error)
    return found


def wrong_model(recipe: Recipe) -> list[RecipeError]:
    """Error of a recipe for an unregistered model."""
    if recipe.model is not None:
        try:
            registry.find(recipe.model.factory)
        except SparsifyError as error:
            return [RecipeError(f"model: {error}", recipe.file)]
    return []
