"""The format that a rule of a recipe asks for.

In: `"csr"`, or `FormatSpec(levels=("dense", "compressed"), ordering=(1, 0))`. Out: a `Format`.
"""

from sparsify.recipe import FormatSpec
from sparsify.storage.format import Format


def recipe_format(form: str | FormatSpec) -> Format:
    """The format of a rule that is not `auto`.

    Raises:
        FormatError: there is none such.

    >>> recipe_format("csc").letters
    'd1s0'
    """
    return Format(form) if isinstance(form, str) else Format(", ".join(form.levels), ordering=form.ordering)
