"""Refusals of unsupported or meaningless keys and values, with the spelling to use instead.

In: the section `FormatSpec` and its key `block`, or `Verify` and `against: masked_dense`. Out: a sentence for the error
at that place, "" for keys that never existed.
"""

from typing import Any, Final

# By section and key, or key and value.
REFUSED: Final[dict[tuple[str, str], str]] = {
    ("Rule", "role: gradient"): (
        "`role: gradient` is not supported: `grad` of a rule says how the gradient of its tensors becomes sparse"
    ),
    ("FormatSpec", "block"): "`block` is not supported; write the blocks into the levels, `i/16: dense`",
    ("Verify", "against: masked_dense"): (
        "`against: masked_dense` is not supported; `against: dense` compares with the dense model that has the zeros "
        "and masks of the rules"
    ),
}


def refusal(section: str, key: str, value: Any = None) -> str:
    """Reason why a key of a section, or one value of the key, is refused; "" for other keys.

    >>> refusal("FormatSpec", "block")
    '`block` is not supported; write the blocks into the levels, `i/16: dense`'
    >>> refusal("Rule", "rfe")
    ''
    """
    return REFUSED.get((section, key)) or REFUSED.get((section, f"{key}: {value}"), "")
