"""Programs and operands for tests, from a seed or from text."""

from collections.abc import Mapping

import numpy as np

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.einsum.text.parse import read
from sparsify.storage.format import Format

EXTENTS = {"i": 3, "j": 4, "k": 2, "l": 3, "f": 3, "h": 3, "r": 2, "x_0": 6, "A_1": 4}


def operand(format: str, dtype: str = "float64", **fields: object) -> Operand:
    """An operand in a named format."""
    return Operand(Format(format), dtype, **fields)  # type: ignore[arg-type]


VECTOR, MATRIX, CUBE = (operand("dense"), operand("dense, dense"), operand("dense, dense, dense"))
SCALAR = operand("scalar")
CSR, CSC, DCSR, COO = operand("csr"), operand("csc"), operand("dcsr"), operand("coo")


def program(text: str, sizes: Mapping[str, int] | None = None, **operands: Operand) -> Program:
    """The program of a text."""
    source = read(text, sizes=sizes)
    return declare(source.statements, operands, sizes={**dict(source.sizes), **(sizes or {})})


def random_inputs(prog: Program, seed: int, density: float = 0.5) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random values and masks of a program's inputs by seed; shared patterns share their mask."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in prog.inputs:
        declared = prog.declaration(name)
        shape = tuple(EXTENTS[extent] for extent in declared.extents)
        mask = np.ones(shape, dtype=bool)
        if not declared.format.is_dense:
            drawn = rng.random(shape) < density
            mask = drawn if declared.pattern_of is None else inputs[declared.pattern_of][1]
        inputs[name] = (np.where(mask, rng.standard_normal(shape), declared.fill), mask)
    return inputs


def random_expression(rng: np.random.Generator, depth: int, bound: tuple[str, ...] = ("i", "j")) -> Expr:
    """Any expression over the index variables `bound`, for printing and reading back."""
    leaf = depth == 0 or rng.random() < 0.15
    if leaf:
        match rng.integers(5):
            case 0:
                return Const([2, 0.5, -3, 1e-9, float("inf"), -float("inf"), True][rng.integers(7)])
            case 1:
                return Index(str(rng.choice(bound)))
            case 2:
                return Access("s")
            case 3:
                return Stored(Access("A", (Index(bound[0]), Index(bound[-1]))))
        offset = Call("add", (Call("mul", (Const(2), Index(bound[0]))), Const(1)))
        return Access("A", (offset if rng.random() < 0.3 else Index(bound[0]), Index(bound[-1])))
    if rng.random() < 0.15:
        name = f"k{len(bound)}"
        monoid = str(rng.choice(["sum", "prod", "min", "max", "or", "and"]))
        return Reduce(monoid, (name,), random_expression(rng, depth - 1, (*bound, name)))
    names = [name for name in FUNCTIONS if not FUNCTIONS[name].body]
    name = str(
        rng.choice(["add", "sub", "mul", "div", "pow", "neg", "eq", "lt"] if rng.random() < 0.7 else names)
    )
    args = tuple(random_expression(rng, depth - 1, bound) for _ in range(FUNCTIONS[name].arity))
    return Call(name, args)
