"""Regrowth: which entries come back when others are dropped.

In: `regrowth("gradient", facts)`. Out: a number for each entry; candidates with large ones come back.

Sources: Mocanu et al., 2018 (SET: random ones); Evci et al., Rigging the Lottery, 2020 (RigL: largest gradients).
"""

from typing import Literal

from torch import Tensor

from sparsify.errors import DataError
from sparsify.pruning.score import Facts, random
from sparsify.sparsification.largest import magnitudes

Regrow = Literal["none", "random", "gradient"]


def regrowth(kind: Regrow, facts: Facts) -> Tensor:
    """The numbers by which candidates come back.

    Raises:
        DataError: gradients are asked for, and there are none.
    """
    if kind == "random":
        return random(facts)
    if facts.gradient is None:
        raise DataError(
            "regrow: gradient needs the dense gradient of this step", "call `backward` before the update"
        )
    return magnitudes(facts.gradient)
