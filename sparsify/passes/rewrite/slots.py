"""Elimination of experts' slots that hold one token each: slot computations become token computations.

In: `d[e,c,m] = sum(s, D[s,e,c] * x[s,m]); r[e,c,h] = relu(sum(m, d[e,c,m] * w[e,m,h])); y[s,o] = sum(e, c, C[s,e,c] *
sum(h, r[e,c,h] * v[e,h,o]))`, D 1 where a token is in a slot, and C the token's weight in the slot.
Out: `r_of_tokens[s,e,h] = relu(sum(m, x[s,m] * w[e,m,h])); y[s,o] = sum(e, G[s,e] * sum(h, r_of_tokens[s,e,h] *
v[e,h,o]))` with `G[s,e] = sum(c, C[s,e,c])`.

Programs omit modes of extent 1: for a single token the sum over tokens is a product, `d[e,c,m] = D[e,c] * x[m]`.
Whether a slot holds a sum of tokens depends on the values of D, so each call checks D.

Source: GShard, Lepikhin et al., 2021, section 2.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.program.model import ModelProgram, Refusal, index_names, sizes_of
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.simplify import renamed

SUFFIX = "_of_tokens"
# The roles of the modes of a slot; a group of tokens has its number.
TOKEN, EXPERT, SLOT = "token", "expert", "slot"
Role = str | int
T = TypeVar("T")


@dataclass(frozen=True)
class Weighting:
    """`y[s,o] = sum(e, c, C[s,e,c] * z[e,c,o])`: a sum over slots whose rows belong to no token.

    Attributes:
        result: name of the statement.
        product: sum of the statement.
        weights: access to C.
        rows: access to z.
        roles: role of each index variable of C.
    """

    result: str
    product: Reduce
    weights: Access
    rows: Access
    roles: Mapping[str, Role]

    @property
    def token(self) -> str | None:
        """The index variable of tokens, `None` for a single token."""
        return next((name for name, role in self.roles.items() if role == TOKEN), None)

    @property
    def slots(self) -> dict[str, Role]:
        """The index variables that identify slots."""
        return {name: role for name, role in self.roles.items() if role != TOKEN}


@dataclass
class Slots:
    """Statements with a slot mode, to be rewritten with a token mode.

    Attributes:
        weighting: sum over slots.
        choice: access that sends tokens to slots, with its index variables by role.
        token_names: token statement of each slot statement; the same one if constant over slots.
    """

    program: ModelProgram
    weighting: Weighting
    choice: tuple[str, tuple[Role, ...]] | None = None
    token_names: dict[str, str] = field(default_factory=dict)

    @property
    def entry(self) -> set[Role]:
        """The roles that identify slots."""
        return set(self.weighting.slots.values())

    def lifted(self, expr: Expr, roles: Mapping[str, Role], token: str | None) -> Expr:
        """An expression for a slot, rewritten for a token.

        Args:
            roles: roles of the index variables that identify slots.
            token: index variable of tokens, `None` for a single token.

        Raises:
            Refusal: the expression depends on more than the token in a slot.
        """

        def visit(node: Node) -> Node:
            sent = self.sent(node, roles)
            if sent is not None:
                tokens, index = sent
                return tokens if index is None or token is None else substitute(tokens, {index: Index(token)})
            if not isinstance(node, Access):
                return map_children(node, visit)
            return self.access(node, roles, token)

        result = visit(expr)
        assert isinstance(result, Expr)
        return result

    def sent(self, node: Node, roles: Mapping[str, Role]) -> tuple[Access, str | None] | None:
        """The tokens of `sum(s, D[s,e,c] * x[s,m])`, and their index variable if any; `None` otherwise.

        Raises:
            Refusal: several tensors send tokens to the same slots.
        """
        index: str | None = None
        if isinstance(node, Reduce) and self.weighting.token is not None:
            if node.monoid != "sum" or len(node.indices) != 1:
                return None
            (index,), node = node.indices, node.body
        elif self.weighting.token is not None:
            return None
        match node:
            case Call("mul", (Access() as left, Access() as right)):
                pass
            case _:
                return None
        roles_inside = dict(roles) if index is None else {**roles, index: TOKEN}
        for choice, tokens in ((left, right), (right, left)):
            at = tuple(roles_inside.get(str(name), "") for name in choice.indices)
            if set(at) != {*self.weighting.roles.values()} or {EXPERT, SLOT} & roles_in(tokens, roles):
                continue
            if index is not None and Index(index) not in tokens.indices:
                continue
            if self.choice is not None and self.choice != (choice.tensor, at):
                raise Refusal(f"{choice.tensor} and {self.choice[0]} send tokens to the same slots")
            self.choice = choice.tensor, at
            return tokens, index
        return None

    def access(self, access: Access, roles: Mapping[str, Role], token: str | None) -> Access:
        """A tensor accessed for a slot, rewritten for a token.

        Raises:
            Refusal: the tensor differs from slot to slot.
        """
        name, read = access.tensor, roles_in(access, roles)
        if name in self.program.statements and self.entry <= read:
            at = tuple(roles.get(str(index), "") for index in access.indices)
            token_name = self.make(name, at)
            if token_name != name:
                return Access(
                    token_name, of_tokens(access.indices, at, None if token is None else Index(token))
                )
        if SLOT in read:
            raise Refusal(f"{name} depends on slots, not only on the tokens in them")
        return access

    def make(self, name: str, at: tuple[Role, ...]) -> str:
        """Adds the token statement of a slot statement with given mode roles; returns its name."""
        if name in self.token_names:
            return self.token_names[name]
        program, statement = self.program, self.program.statements[name]
        statement = renamed(statement, {i: program.index(program.extents[i]) for i in index_names(statement)})
        target_names = [str(index) for index in statement.target.indices]
        roles = {index: role for index, role in zip(target_names, at, strict=True) if role != ""}
        slot_token = self.weighting.token
        token = None if slot_token is None else program.index(program.extents[slot_token])
        value = self.lifted(statement.value, roles, token)
        if value == statement.value:
            self.token_names[name] = name
            return name
        token_name = self.token_names[name] = f"{name}{SUFFIX}"
        program.assign(token_name, of_tokens(target_names, at, token), value, program.source[name])
        program.dtypes[token_name] = program.dtypes[name]
        return token_name

    def order(self, node: fx.Node, at: Sequence[Role]) -> list[int]:
        """The modes of C or D as [groups.., tokens, experts, slots]; unit modes are groups or missing roles.

        Raises:
            Refusal: the mode of slots, or of tokens, is missing.
        """
        sizes = sizes_of(node.meta["val"])
        ones = [mode for mode, size in enumerate(sizes) if size == 1]
        long_modes = [mode for mode, size in enumerate(sizes) if size != 1]
        modes: dict[Role, int] = dict(zip(at, long_modes, strict=True))
        missing: list[Role] = [role for role in (SLOT, TOKEN) if role not in modes]
        for role in missing:
            if not ones:
                raise Refusal(f"{node.name} has no mode of {role}s")
            modes[role] = ones.pop()
        groups = sorted(role for role in modes if isinstance(role, int))
        order: list[Role] = [*groups, TOKEN, EXPERT, SLOT]
        return [*ones, *(modes[role] for role in order)]


def of_tokens(indices: Sequence[T], at: Sequence[Role], token: T | None) -> tuple[T, ...]:
    """Slot indices replaced by [groups.., token, ..]; without a token index for a single token."""
    named = list(zip(indices, at, strict=True))
    groups = sorted((role, position) for position, (_, role) in enumerate(named) if isinstance(role, int))
    rest = (index for index, role in named if role != SLOT and not isinstance(role, int))
    return (*(indices[position] for _, position in groups), *([] if token is None else [token]), *rest)


def roles_in(access: Access, roles: Mapping[str, Role]) -> set[Role]:
    """The roles of the index variables of an access."""
    named = (index.name for index in find(access, Index) if isinstance(index, Index))
    return {roles[name] for name in named if name in roles}


def slots_of(program: ModelProgram, weights: str) -> Slots | str | None:
    """The token statements of a sum over slots with given weights, or the refusal.

    `None` where rows of experts belong to tokens already.
    """
    before, why = dict(program.statements), None
    for weighting in weightings(program, weights):
        slots = Slots(program, weighting)
        try:
            slots.access(weighting.rows, weighting.slots, weighting.token)
            if slots.choice is not None:
                return slots
            refused = "what its experts read are no tokens that a sum sends to their slots"
        except Refusal as refusal:
            refused = str(refusal)
        program.statements = dict(before)
        why = why or (None if weighting.token is None else refused)  # rows of a single token need no slot
    return why


def weightings(program: ModelProgram, weights: str) -> list[Weighting]:
    """The sums over slots with given weights, with either of two modes as the experts'."""
    result = []
    for name in program.readers().get(weights, ()):
        statement = program.statements[name]
        for product in find(statement.value, Reduce):
            match product:
                case Reduce("sum", bound, Call("mul", (Access() as left, Access() as right))):
                    chosen, rows = (left, right) if left.tensor == weights else (right, left)
                case _:
                    continue
            indices = [str(index) for index in chosen.indices]
            free = [index for index in indices if Index(index) in statement.target.indices]
            tokens = [index for index in free if Index(index) not in rows.indices]
            is_whole = set(bound) <= set(indices) and {Index(b) for b in bound} <= set(rows.indices)
            if chosen.tensor != weights or len(tokens) > 1 or len(bound) not in (1, 2) or not is_whole:
                continue
            if len(free) + len(bound) != len(indices):
                continue
            groups: dict[str, Role] = {i: g for g, i in enumerate(i for i in free if i not in tokens)}
            for names in (bound, bound[::-1]) if len(bound) == 2 else (bound,):
                roles = groups | dict.fromkeys(tokens, TOKEN) | dict(zip(names, (EXPERT, SLOT), strict=False))
                result.append(Weighting(name, product, chosen, rows, roles))
    return result


def send_back(program: ModelProgram, slots: Slots, gate: fx.Node) -> None:
    """`y[s,o] = sum(e, c, C[s,e,c] * z[e,c,o]) -> y[s,o] = sum(e, G[s,e] * z_of_tokens[s,e,o])`, in place."""
    weighting = slots.weighting
    roles = {role: name for name, role in weighting.roles.items()}
    program.nodes[gate.name] = gate
    groups = sorted(role for role in roles if isinstance(role, int))
    at = tuple(Index(roles[role]) for role in (*groups, TOKEN, EXPERT) if role in roles)
    rows = slots.access(weighting.rows, weighting.slots, weighting.token)
    weighted_sum = Reduce("sum", (roles[EXPERT],), Call("mul", (Access(program.leaf(gate), at), rows)))

    def visit(node: Node) -> Node:
        return weighted_sum if node == weighting.product else map_children(node, visit)

    statement = program.statements[weighting.result]
    value = visit(statement.value)
    assert isinstance(value, Expr)
    program.statements[weighting.result] = replace(statement, value=value)
    program.drop_unneeded()
    program.order()
