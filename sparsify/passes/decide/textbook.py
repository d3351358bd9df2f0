"""Statements of a cut with textbook names.

In: `mul[i4,i5] = a[i4,i5] * sum(i9, x[i4,i9] * x[i5,i9])`. Out: `Y[i,k] = A[i,k] * sum(j, X[i,j] * X[k,j])`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find
from sparsify.passes.decide.cut import Cut
from sparsify.passes.graph.operators import parameter_behind
from sparsify.passes.program.model import ModelProgram, index_names
from sparsify.passes.region.region import rename
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, SparseOperand, row_scales
from sparsify.passes.rewrite.simplify import renamed

RESULT_NAMES: Final = ("i", "k", "l", "m")
SUM_NAMES: Final = ("j", "f", "g", "h", "n", "p", "q", "r")


@dataclass(frozen=True)
class Text:
    """Statements in readable form.

    Attributes:
        names: names in the text, by name in the model program.
        sizes: extents fixed in every call, by index variable.
    """

    statements: tuple[Assign, ...]
    names: Mapping[str, str]
    sizes: Mapping[str, int]


def textbook(
    program: ModelProgram,
    cut: Cut,
    outputs: Sequence[str],
    operands: Mapping[str, SparseOperand | fx.Node],
) -> Text:
    """The statements of a cut: A sparse, X and W matrices, b vectors, T temporaries, Y results; modes i, k."""
    statements = unified(program, cut.statements)
    indices = index_texts(statements, outputs, program.letters)
    names = tensor_texts(cut, outputs, operands, program.letters)

    texts = tuple([rename(statement, names, indices) for statement in statements])
    representatives = (
        (text, program.representative(program.extents[name])) for name, text in indices.items()
    )
    sizes = {text: size for text, size in representatives if isinstance(size, int)}
    return Text(texts, names, sizes)


def unified(program: ModelProgram, statements: Sequence[Assign]) -> list[Assign]:
    """Statements with one index variable per mode, from the defining statement or the first reader."""
    modes: dict[str, tuple[str, ...]] = {}
    result = []
    for statement in statements:
        statement_names = set(index_names(statement))
        names: dict[str, str] = {}
        for access in find(statement.value, Access):
            for index, target in zip(access.indices, modes.get(access.tensor, ()), strict=False):
                if (
                    isinstance(index, Index)
                    and index.name not in names
                    and target not in statement_names
                    and target not in names.values()
                    and program.representative(program.extents[index.name])
                    == program.representative(program.extents[target])
                ):
                    names[index.name] = target
        statement = renamed(statement, names)
        for access in (statement.target, *find(statement.value, Access)):
            if all(isinstance(index, Index) for index in access.indices):
                modes.setdefault(access.tensor, tuple(map(str, access.indices)))
        result.append(statement)
    return result


def unread_indices(statements: Sequence[Assign]) -> list[str]:
    """The index variables without an operand of their extent, as operands are read at expressions."""
    computed = {statement.target.tensor for statement in statements}
    every = dict.fromkeys(name for statement in statements for name in index_names(statement))
    read = (access for s in statements for access in find(s.value, Access) if access.tensor not in computed)
    plain = {index.name for access in read for index in access.indices if isinstance(index, Index)}
    return [name for name in every if name not in plain]


def index_texts(
    statements: Sequence[Assign], outputs: Sequence[str], letters: Mapping[str, str]
) -> dict[str, str]:
    """Short names of index variables: fixed letters, the first result's modes, then others."""
    first = next(s for s in statements if s.target.tensor == outputs[0])
    every = dict.fromkeys(name for statement in statements for name in index_names(statement))
    fixed = {letters[name]: name for name in reversed(every) if name in letters}
    texts = {name: letter for letter, name in fixed.items()}
    modes = [str(index) for index in first.target.indices if str(index) not in texts]
    texts |= dict(zip(modes, (name for name in RESULT_NAMES if name not in fixed), strict=False))
    left = [name for name in (*SUM_NAMES, *RESULT_NAMES) if name not in texts.values()]
    rest = chain(left, (f"s{number}" for number in count()))
    for statement in statements:
        for name in index_names(statement):
            if name not in texts:
                texts[name] = next(rest)
    return texts


def tensor_texts(
    cut: Cut,
    outputs: Sequence[str],
    operands: Mapping[str, SparseOperand | fx.Node],
    letters: Mapping[str, str],
) -> dict[str, str]:
    """Short names of tensors."""
    numbered: dict[str, Iterator[str]] = {}

    def short(base: str) -> str:
        numbers = numbered.setdefault(base, chain([base], (f"{base}{number}" for number in count(1))))
        return next(numbers)

    ranks = {a.tensor: len(a.indices) for s in cut.statements for a in find(s.value, Access)}
    names = {n: short(letters.get(n) or letter_of(operand, ranks[n])) for n, operand in operands.items()}
    names |= {name: short(letters.get(name, "T")) for name in cut.names if name not in outputs}
    return names | {name: short("Y") for name in outputs}


def letter_of(operand: SparseOperand | fx.Node, rank: int) -> str:
    """The letter of an operand read with `rank` index variables."""
    if isinstance(operand, PatternOperand):
        return "M"
    if isinstance(operand, Bags):
        return "A"
    if isinstance(operand, Matrix):
        return {"weight": "W", "activation": "X", "attention_mask": "M", "gate": "G"}.get(
            operand.mark.role, "A"
        )
    if rank <= 1:
        return "s" if operand.target is row_scales else "b"
    return "W" if parameter_behind(operand) is not None else "X"
