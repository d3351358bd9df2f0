"""The format requested by a recipe rule.

In: `"csr"`, or `FormatSpec(levels=("dense", "compressed"), ordering=(1, 0))`. Out: a `Format`.
"""

from sparsify.recipe import FormatSpec
from sparsify.storage.format import Format


def recipe_format(form: str | FormatSpec) -> Format:
    """The format of a rule other than `auto`.

    Raises:
        FormatError: an unknown format.

    >>> recipe_format("csc").letters
    'd1s0'
    """
    return Format(form) if isinstance(form, str) else Format(", ".join(form.levels), ordering=form.ordering)
