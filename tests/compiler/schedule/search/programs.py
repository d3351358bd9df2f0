"""Programs for tests of the search.

In: a text and formats. Out: the notation before its schedule, and its facts for given sizes.
"""

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.search.facts import Facts, facts_of
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format

SIZES = Sizes({"i": 1000, "j": 1000, "k": 64}, {"A": 40_000, "B": 40_000})


def notation(text: str, **formats: str) -> Notation:
    """The notation of a program with operands of float32."""
    operands = {}
    for name, levels in formats.items():
        format = Format(levels)
        operands[name] = Operand(format, "float32", index_dtypes=result_index_dtypes(format))
    return concretize(declare(parse(text), operands))


def facts(text: str, sizes: Sizes = SIZES, lanes: int = 8, **formats: str) -> Facts:
    """The facts of a program."""
    found = facts_of(notation(text, **formats), lanes, 4, sizes)
    assert found is not None
    return found


def texts(action, given: Facts, schedule: str) -> list[str]:
    """The schedules that an action makes of one."""
    return [str(made) for made in action(Schedule.parse(schedule), given)]
