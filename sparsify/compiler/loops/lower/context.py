"""The context of lowering: the facts of the program, what has been emitted so far, and the way back to statements.

In: a statement inside a loop. Out: `context.statement(node, env)`, its loop IR by the function for its kind of node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.lower.assembly import Assembly
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.loops.names import Names
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import UnsupportedProgramError

# Functions by the class of a statement. They lie in the highest module, and the modules below call them by the context.
Statements = Mapping[type[Node], Callable[["Context", Any, Environment], Lowered]]
# Maximum cases of merged loops in one kernel: three operands in two sparse levels have 361.
MOST_CASES = 400


@dataclass(frozen=True, slots=True)
class Table:
    """The hash table of a workspace of several modes.

    Attributes:
        name: name of the table; the values have the name of the temporary.
        keys: buffer of the keys, in insertion order.
        order: index variables from the largest step of a key to the smallest.
        count: number of entries in use.
        place: place of the current entry.
        span: range of entries selected by the outer loops, `None` for all.
    """

    name: str
    keys: str
    order: tuple[str, ...]
    count: loops.Var
    place: loops.Expr
    span: tuple[loops.Expr, loops.Expr] | None = None


class Context(ProgramFacts):
    """One lowering: the program, and the state of emission.

    Attributes:
        assumed: splits assumed to divide their extents.
        memory: temporaries in memory, by name.
        listed: counts of the entries in use of dense workspaces, by name.
        read: accesses read by statements, by node identity and absent accesses; the nodes are kept alive with their
            ids.
        setups: statements before the loops of each enclosing parallel loop, outermost first.
        repeating: operands with repeated rows, marked once.
        prefilled: results of loops that skip coordinates.
    """

    def __init__(self, program: notation.Notation, vector_bytes: int, statements: Statements) -> None:
        super().__init__(program, vector_bytes)
        self._statements = statements
        self.blocks_divide = True
        self.assumed: set[notation.Split] = set()
        self.memory: dict[str, notation.Temporary] = {}
        self.listed: dict[str, loops.Var] = {}
        self.tables: dict[str, Table] = {}
        self.marked: set[str] = set()
        self.read: dict[tuple[int, frozenset[Access]], tuple[Node, tuple[Access, ...]]] = {}
        self.longest: set[str] = set()
        self.transposed: dict[Access, loops.Expr] = {}
        self.setups: list[Lowered] = [[]]
        self.repeating: set[str] = set()
        self.prefilled: set[str] = set()
        self.is_parallel = False
        self.shared_sums = 0
        self.names = Names({*self.index_dtypes, *self.sizes} | self.in_memory)
        self.assembly: Assembly | None = None
        self.cases = 0

    def statement(self, node: notation.Statement | Assign, env: Environment) -> Lowered:
        """The loop IR of one statement."""
        return self._statements[type(node)](self, node, env)

    def fresh(self, name: str) -> str:
        """`name`, or `name` with an unused number."""
        return self.names.fresh(name)

    def fresh_int(self, name: str) -> loops.Var:
        """A fresh int64 variable."""
        return loops.Var(self.fresh(name), loops.INT)

    def is_whole(self, split: notation.Split) -> bool:
        """Whether the code assumes extents divisible by the operand blocks of `split`."""
        if split not in self.blocks or not self.blocks_divide:
            return False
        self.assumed.add(split)
        return True

    def count_cases(self, loop: notation.Forall, number: int) -> None:
        """Counts the bodies of merged loops: each is separate code, and nested cases multiply.

        Raises:
            UnsupportedProgramError: too many cases.
        """
        self._count(
            number,
            f"merging the sparse operands at the loop over {loop.index}",
            "several statements of fewer operands, or dense operands",
        )

    def count_bodies(self, access: Access) -> None:
        """Counts a body emitted once with and once without an entry.

        Raises:
            UnsupportedProgramError: too many cases, as for merged loops.
        """
        self._count(1, f"looking for {access} and other entries", "several statements of fewer windows")

    def _count(self, number: int, what: str, instead: str) -> None:
        self.cases += number
        if self.cases > MOST_CASES:
            raise UnsupportedProgramError(f"{what} takes more than {MOST_CASES} cases", instead)
