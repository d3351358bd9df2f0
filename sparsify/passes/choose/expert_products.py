"""A mixture of experts by torch's matrix products, one expert after the other, in place of its kernel.

In: the program of `T[i,j,f] = G[i,j] * relu(sum(g, X[i,g] * W[j,f,g])); Y[i,k] = sum(j, f, T[i,j,f] * V[j,k,f])`, G
stored by experts j. Out: a function of its operands: for each expert with tokens, `Y[tokens] += (G[tokens,j] *
relu(X[tokens] @ W[j].T)) @ V[j].T`.

A kernel copies tiles of each expert's matrices, and multiplies half precision as float32. For few tokens the copies may
take longer than the products, and torch's products use the instructions of CPUs for half precision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.reference.functions import TORCH
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose.torch_csr import spread
from sparsify.passes.lift.experts.mixture import BY_EXPERT, HALVES
from sparsify.storage.tensor import SparseTensor

# A tensor, and the index variables of its modes.
Named = tuple[Tensor, tuple[str, ...]]
# Functions of single entries; random numbers depend on the coordinates of all tokens.
# Columns up to which a product takes the large matrix first: BLAS packs the second one.
NARROW: Final = 4
FUNCTIONS: Final = frozenset(TORCH) - {"uniform"}


@dataclass(frozen=True, slots=True)
class ExpertProducts:
    """The program of a mixture, computed by torch.

    Attributes:
        program: einsum program; all statements but the last have a value for each token of an expert.
        gate: name of the sparse operand.
        token, expert: index variables of the gate.
    """

    program: Program
    gate: str
    token: str
    expert: str

    def __call__(self, operands: Sequence[Any]) -> Tensor:
        """The result for operands in the order of the program, differentiable."""
        values = dict(zip(self.program.inputs, operands, strict=True))
        gate = values.pop(self.gate)
        assert isinstance(gate, SparseTensor), "the program has it sparse"
        positions, tokens = (array.long() for array in gate._pattern.arrays_in_place())
        ends = positions.tolist()
        values = {name: self.of_tokens(name, value, tokens) for name, value in values.items()}
        weights = gate._vals
        results = [
            self.result(values, weights, expert, begin, end)
            for expert, (begin, end) in enumerate(pairwise(ends))
            if begin < end
        ]
        return self.summed(results, tokens, gate.shape[0], values)

    def of_tokens(self, name: str, value: Tensor, tokens: Tensor) -> Tensor:
        """An operand, with a row for each entry of the gate in place of each token."""
        extents = self.program.declaration(name).extents
        return value.index_select(extents.index(self.token), tokens) if self.token in extents else value

    def result(
        self, values: Mapping[str, Tensor], weights: Tensor, expert: int, begin: int, end: int
    ) -> Tensor:
        """The rows that an expert contributes, [its tokens, ..]."""
        named: dict[str, Named] = {self.gate: (weights[begin:end], (self.token,))}
        for name, value in values.items():
            extents = self.program.declaration(name).extents
            if self.expert in extents:
                value = value.select(extents.index(self.expert), expert)
            if self.token in extents:
                mode = tuple(n for n in extents if n != self.expert).index(self.token)
                value = value.narrow(mode, begin, end - begin)
            named[name] = value, tuple(n for n in extents if n != self.expert)
        for statement in self.program.statements:
            statement_value = self.value(summed_over(statement), named)
            names = tuple(name for name in names_of(statement.target) if name != self.expert)
            named[statement.target.tensor] = spread(*statement_value, names), names
        return named[self.program.outputs[0]][0]

    def summed(
        self, results: Sequence[Tensor], tokens: Tensor, count: int, values: Mapping[str, Tensor]
    ) -> Tensor:
        """The sum over experts of their rows; of half precision in float32, rounded once."""
        output = self.program.declaration(self.program.outputs[0])
        dtype = getattr(torch, output.dtype)
        sums = torch.float32 if dtype in HALVES else dtype
        if not results:
            sizes = {n: s for name, v in values.items() for n, s in self.sizes(name, v)}
            return torch.zeros([count, *(sizes[name] for name in output.extents[1:])], dtype=dtype)
        rows = torch.cat(list(results)).to(sums)
        return rows.new_zeros([count, *rows.shape[1:]]).index_add(0, tokens, rows).to(dtype)

    def sizes(self, name: str, value: Tensor) -> Iterator[tuple[str, int]]:
        """The extents of an operand's modes by index variable."""
        return zip(self.program.declaration(name).extents, value.shape, strict=True)

    def value(self, expr: Expr, named: Mapping[str, Named]) -> Named:
        """The value of an expression for the tokens of one expert."""
        match expr:
            case Access(tensor, indices):
                return self.read(named[tensor], indices)
            case Const(number):
                return torch.tensor(number, dtype=torch.float64), ()
            case Stored():
                return torch.ones((), dtype=torch.float64), ()  # all tokens of the expert are stored
            case Cast(dtype, value):
                result, names = self.value(value, named)
                return result.to(getattr(torch, dtype)), names
            case Call("where", (Stored(), value, Const())):
                return self.value(value, named)
            case Call(function, args):
                return entrywise(function, [self.value(arg, named) for arg in args])
            case Reduce("sum", names, body):
                factors = [self.value(factor, named) for factor in factors_of(body)]
                return contracted(factors, [name for name in names if name != self.expert])
        raise AssertionError(f"{expr} is in no program of expert_products")

    def read(self, tensor: Named, indices: Sequence[Expr]) -> Named:
        """A tensor read at index variables and constants; its mode for the expert is gone."""
        result, names = tensor[0], list[str]()
        for index in indices:
            if isinstance(index, Const):
                result = result.select(len(names), int(index.value))
            elif index != Index(self.expert):
                assert isinstance(index, Index), "programs of expert_products have plain indices"
                names.append(index.name)
        return result, tuple(names)


def expert_products(program: Program) -> ExpertProducts | None:
    """The program of a mixture for torch's products; `None` for other programs."""
    sparse = [d for d in program.declarations if d.name in program.inputs and not d.format.is_dense]
    if len(sparse) != 1 or sparse[0].format != BY_EXPERT or len(set(sparse[0].extents)) != 2:
        return None
    gate = sparse[0]
    mixture = ExpertProducts(program, gate.name, *gate.extents)
    return mixture if is_known(mixture) else None


def of_experts(products: ExpertProducts, call: RegionCall, arguments: Sequence[Any]) -> Tensor:
    """The result of torch's products for the arguments of a region's call."""
    return products(call.values(arguments))


def is_known(mixture: ExpertProducts) -> bool:
    """Whether the last statement sums over experts, and all others have a value for each expert."""
    program, expert, token = mixture.program, mixture.expert, mixture.token
    *inside, last = program.statements
    if program.outputs != (last.target.tensor,) or names_of(last.target)[:1] != (token,):
        return False
    if expert in names_of(last.target) or not isinstance(last_sum := summed_over(last), Reduce):
        return False
    if last_sum.monoid != "sum" or expert not in last_sum.indices:
        return False
    are_inside = all(
        statement.monoid is None and expert in names_of(statement.target) for statement in inside
    )
    bound = [name for s in inside for part in find(s.value, Reduce) for name in part.indices]
    if not are_inside or expert in bound or token in (*bound, *last_sum.indices):
        return False
    return all(is_read(mixture, access) for s in program.statements for access in find(s, Access)) and all(
        is_expression(part) for s in program.statements for part in walk(s.value)
    )


def is_read(mixture: ExpertProducts, access: Access) -> bool:
    """Whether an access has the gate's index variables in the modes with their extents, and each variable once."""
    extents = mixture.program.declaration(access.tensor).extents
    names = [index.name if isinstance(index, Index) else None for index in access.indices]
    are_plain = all(isinstance(index, Index | Const) for index in access.indices)
    variables = [name for name in names if name is not None]
    return (
        are_plain
        and len(names) == len(extents)
        and len(set(variables)) == len(variables)
        and len(set(extents)) == len(extents)
        and all(
            (extent == special) == (name == special)
            for name, extent in zip(names, extents, strict=True)
            for special in (mixture.token, mixture.expert)
        )
    )


def is_expression(part: Node) -> bool:
    """Whether a part of an expression has a meaning for the tokens of one expert."""
    match part:
        case Call("where", (Stored(), _, Const())):
            return True
        case Call(function):
            return function in FUNCTIONS
        case Reduce(monoid):
            return monoid == "sum"
    return isinstance(part, Access | Const | Cast | Index | Stored)


def walk(expr: Node) -> Iterator[Node]:
    """An expression and all of its parts."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def summed_over(statement: Assign) -> Expr:
    """The right side of a statement, `Y[i] += x[i,j]` as `sum(j, x[i,j])`."""
    if statement.monoid is None:
        return statement.value
    free = {name for access in find(statement.value, Access) for name in names_of(access)}
    bound = {name for part in find(statement.value, Reduce) for name in part.indices}
    names = sorted(free - bound - {*names_of(statement.target)})
    return Reduce(statement.monoid, tuple(names), statement.value)


def names_of(access: Access) -> tuple[str, ...]:
    """The plain index variables of an access."""
    return tuple(index.name for index in access.indices if isinstance(index, Index))


def factors_of(expr: Expr) -> list[Expr]:
    """The factors of a product."""
    match expr:
        case Call("mul", (left, right)):
            return [*factors_of(left), *factors_of(right)]
    return [expr]


def entrywise(function: str, args: Sequence[Named]) -> Named:
    """A function of entries, over all index variables of its arguments; numbers stay without modes to keep dtypes."""
    names = tuple(dict.fromkeys(name for _, indices in args for name in indices))
    return TORCH[function](*[spread(*arg, names) if arg[1] else arg[0] for arg in args]), names


def contracted(factors: Sequence[Named], names: Sequence[str]) -> Named:
    """The sum over some index variables of a product."""
    summed = [factor for factor in factors if not set(names).isdisjoint(factor[1])]
    rest = [factor for factor in factors if set(names).isdisjoint(factor[1])]
    result = product(summed, names) if summed else None
    for factor in rest:
        result = factor if result is None else entrywise("mul", [result, factor])
    assert result is not None, "a product has factors"
    return result


def matrix_product(one: Named, other: Named, names: Sequence[str]) -> Named:
    """The sum over all index variables that two tensors share, as one matrix product in the order of the operands."""
    modes = [[indices.index(name) for name in names] for _, indices in (one, other)]
    left = tuple(name for _, indices in (one, other) for name in indices if name not in names)
    return torch.tensordot(one[0], other[0], dims=modes), left


def product(factors: Sequence[Named], names: Sequence[str]) -> Named:
    """The sum of a product over index variables, as a matrix product if possible."""
    every = tuple(dict.fromkeys(name for _, indices in factors for name in indices))
    left = tuple(name for name in every if name not in names)
    if len(factors) == 2:
        (one, indices), (other, others) = sorted(factors, key=lambda factor: factor[0].numel(), reverse=True)
        if {*indices} & {*others} == {*names}:
            summed = [indices.index(name) for name in names], [others.index(name) for name in names]
            is_narrow = other.numel() <= NARROW * prod(one.shape[mode] for mode in summed[0])
            pair = ((one, indices), (other, others)) if is_narrow else ((other, others), (one, indices))
            return matrix_product(*pair, names)
    places = {name: position for position, name in enumerate(every)}
    arguments: list[Any] = []
    for tensor, indices in factors:
        arguments += [tensor, [places[name] for name in indices]]
    result: Tensor = torch.einsum(*arguments, [places[name] for name in left])
    return result, left
