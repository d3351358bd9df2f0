"""Regrowth: choice of entries to activate in place of dropped ones.

In: `regrowth("gradient", facts)`. Out: a number for each entry; candidates with the largest magnitudes regrow.

Sources: Mocanu et al., 2018 (SET: random entries); Evci et al., Rigging the Lottery, 2020 (RigL: largest gradients).
"""

from typing import Literal

from torch import Tensor

from sparsify.errors import DataError
from sparsify.pruning.score import Facts, random

Regrow = Literal["none", "random", "gradient"]


def regrowth(kind: Regrow, facts: Facts) -> Tensor:
    """The entries whose magnitudes are the regrowth scores of candidates.

    Raises:
        DataError: regrowth by gradient without a gradient.
    """
    if kind == "random":
        return random(facts)
    if facts.gradient is None:
        raise DataError(
            "regrow: gradient needs the dense gradient of this step", "call `backward` before the update"
        )
    return facts.gradient.detach()
