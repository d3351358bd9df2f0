"""Methods of the literature as compositions of score, schedule and regrowth. The module does not import torch.

In: `METHODS["rigl"]`. Out: `Method(score="magnitude", schedule="cosine", regrow="gradient", ...)`.
"""

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Method:
    """A composition.

    Attributes:
        score: score of entries to keep.
        schedule: the default kind of schedule.
        regrow: choice of entries to regrow.
        source: the publication.
    """

    score: str
    schedule: str
    regrow: Literal["none", "random", "gradient"] = "none"
    source: str = ""


METHODS: Final[dict[str, Method]] = {
    "magnitude": Method("magnitude", "oneshot", source="Han et al., 2015"),
    "block_magnitude": Method("magnitude", "oneshot", source="Gray, Radford and Kingma, 2017"),
    "random": Method("random", "oneshot", source="Liu et al., 2022"),
    "gradient": Method("gradient", "cubic", source="Molchanov et al., 2019"),
    "gmp": Method("magnitude", "cubic", source="Zhu and Gupta, 2017"),
    "movement": Method("movement", "cubic", source="Sanh, Wolf and Rush, 2020"),
    "set": Method("magnitude", "cosine", "random", source="Mocanu et al., 2018"),
    "rigl": Method("magnitude", "cosine", "gradient", source="Evci et al., 2020"),
    "constant": Method("magnitude", "constant", source="masks of the zeros that are there"),
}


def table() -> str:
    """The methods as a table of Markdown."""
    rows = [f"| `{n}` | {m.score} | {m.schedule} | {m.regrow} | {m.source} |" for n, m in METHODS.items()]
    return "\n".join(["| method | score | schedule | regrow | source |", "|---|---|---|---|---|", *rows])
