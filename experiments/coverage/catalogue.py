"""All models of the table, in its order.

In: `SUBJECTS["BERT (transformers)"]`. Out: a `Subject`.
"""

from typing import Final

from experiments.coverage import graph_networks, mixtures, subjects

SUBJECTS: Final = {**subjects.SUBJECTS, **mixtures.SUBJECTS, **graph_networks.SUBJECTS}
