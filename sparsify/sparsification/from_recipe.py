"""The parts of results and gradients in a recipe rule, as objects.

In: `inline: {threshold: 0.1}, format: csr`. Out: `Parts(ScalarThreshold(0.1), format="csr")`.
"""

from typing import Any

from sparsify.errors import SparsifierError
from sparsify.recipe.sparsifier_spec import SparsifierSpec
from sparsify.sparsification import sparsifiers
from sparsify.sparsification.sparsified import ALL, Parts


def sparsifier_of(spec: SparsifierSpec | None) -> Any:
    """The sparsifier of a specification, `KeepAll()` without one.

    Raises:
        SparsifierError: unknown arguments.

    >>> sparsifier_of(SparsifierSpec.model_validate({"nm": "2:4"}))
    PerBlockFraction(n=2, m=4, dim=None, group=None)
    """
    if spec is None:
        return ALL
    if spec.given is not None:
        return spec.given
    try:
        return getattr(sparsifiers, spec.name)(**spec.arguments)
    except TypeError as error:
        raise SparsifierError(f"{spec}: {error}", "its arguments, as sparsify.sparsifiers has them") from None


def parts_of(rule_parts: Any) -> Parts | None:
    """The four parts of a rule, or of its `grad`; `None` if all are left out.

    Raises:
        SparsifierError: unknown arguments of a sparsifier.
    """
    if rule_parts is None:
        return None
    return Parts(
        sparsifier_of(rule_parts.inline),
        rule_parts.temporary,
        sparsifier_of(rule_parts.external),
        rule_parts.format,
    )
