"""Recursive descent parser of index notation.

In: `y[i] = relu(A[i,j] * x[j] + b[i])`. Out: `(Assign(Access("y", (Index("i"),)), None, Call("relu",
...)),)`, its sums explicit: `y[i] = relu(sum(j, A[i,j] * x[j]) + b[i])`.

    statement   access assign comparison
    comparison  sum [("==" | "!=" | "<" | "<=" | ">" | ">=") sum]
    sum         product (("+" | "-") product)*
    product     unary (("*" | "/") unary)*
    unary       "-" unary | power
    power       atom ["**" unary]
    atom        number | "inf" | "nan" | "True" | "False" | name | access | call | "(" comparison ")"
    access      name "[" index ("," index)* "]"
    index       sum | [bound] ":" [bound] [":" number]
    bound       ["-"] number

A slice sums, like every index missing on the left, or stands for an index variable of the target without another
occurrence on the right: `Y[i,j] = A[2:10:2,j]`; a negative step reverses the order. Bounds relative to the end of a
mode, `A[2:,j]`, `A[:-1,j]` and `A[-1,j]`, need its extent. `extent(j)` is the number of coordinates of `j`.

`max(j, A[i,j])` reduces, as do the other monoids. `argmax(j, A[i,j])` and `argmin` return the first position of an
extremum as int64: the first NaN if any, and 0 for an empty extent.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, nan

from sparsify.compiler.einsum.functions import COMPARISON, FUNCTIONS, PRODUCT, SUM
from sparsify.compiler.einsum.implicit_sums import free_indices, make_sums_explicit
from sparsify.compiler.einsum.infer.extents import accesses, bind_extents
from sparsify.compiler.einsum.monoids import MONOIDS, PLACES
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Extent, Index, Reduce, Stored
from sparsify.compiler.einsum.rename import fresh, rename_indices
from sparsify.compiler.einsum.text import slice_syntax
from sparsify.compiler.einsum.text.tokens import Token, tokenize
from sparsify.errors import ParseError

CONSTANTS = {"inf": inf, "nan": nan, "True": True, "False": False}
EXTENT = "extent"
MAX_DEPTH = 100
# Most operands of one chain; deeper trees exceed the recursion limit.
MAX_TERMS = 200
# Most statements: the compiler takes seconds for this number, with quadratic growth.
MAX_STATEMENTS = 256


@dataclass(frozen=True, slots=True)
class Source:
    """The parsed text: its statements, and the extents fixed by its slices."""

    statements: tuple[Assign, ...]
    sizes: tuple[tuple[str, int], ...]


def parse(text: str, *, indices: Collection[str] = ()) -> tuple[Assign, ...]:
    """The statements of `text`, one a line, with all sums explicit.

    A name inside the brackets of an access is an index variable in the whole text; other names without brackets are
    scalars.

    Args:
        indices: further names of index variables, those of `sizes=`.

    Raises:
        ParseError: `text` is not index notation; the message points at the place.

    >>> print(parse("y[i] = A[i,j] * x[j] + z[i]")[0])
    y[i] = sum(j, A[i,j] * x[j]) + z[i]
    """
    return tuple(map(make_sums_explicit, _Reader(text, indices).statements()))


def read(
    text: str, *, sizes: Mapping[str, int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> Source:
    """The statements of `parse`, with the extents of index variables for slices, `A[2:10:2,j]`.

    Args:
        sizes: extents of index variables.
        shapes: shapes of the operands, needed by slices without a stop, `A[2:,j]`.
    """
    reader = _Reader(text, tuple(sizes or ()), sizes, shapes)
    return Source(tuple(map(make_sums_explicit, reader.statements())), tuple(reader.sizes.items()))


def parse_expression(text: str, *, indices: Collection[str] = ()) -> Expr:
    """A single expression, with sums as written."""
    reader = _Reader(text, indices)
    while reader.accept("newline"):
        pass
    expr = reader.comparison()
    while reader.accept("newline"):
        pass
    if reader.here.kind != "end":
        raise reader.error("the expression ends before this")
    return expr


def parse_statement(text: str, *, indices: Collection[str] = ()) -> Assign:
    """A single statement, with sums as written."""
    reader = _Reader(text, indices)
    statements = reader.statements()
    if len(statements) != 1:
        raise reader.error("one statement expected, found more")
    return statements[0]


class _Reader:
    """The tokens of a text and the current position."""

    def __init__(
        self,
        text: str,
        indices: Collection[str],
        sizes: Mapping[str, int] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.text = text
        self.given_sizes = dict(sizes or {})
        self.shapes = dict(shapes or {})
        self.read: list[Assign] = []
        self.tokens = tokenize(text)
        self.place = 0
        self.depth = 0
        self.given = frozenset(indices)
        self.indices = self.given | _index_names(self.tokens)
        self.slices: list[tuple[str, ...]] = []
        self.bound: tuple[str, ...] = ()
        self.sizes: dict[str, int] = {}

    @property
    def here(self) -> Token:
        return self.tokens[self.place]

    def error(self, message: str, token: Token | None = None) -> ParseError:
        return ParseError(self.text, (token or self.here).position, message)

    def accept(self, kind: str, *texts: str) -> Token | None:
        """The next token if it has this kind and one of these texts, else `None`."""
        token = self.here
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self.place += 1
        return token

    def expect(self, text: str, after: str) -> Token:
        """The next token, which must be the operator `text`."""
        token = self.accept("operator", text)
        if token is None:
            found = repr(self.here.text) if self.here.text.strip() else "the end of the statement"
            raise self.error(f"{text!r} expected after {after}, found {found}")
        return token

    def statements(self) -> list[Assign]:
        while self.here.kind != "end":
            if not self.accept("newline"):
                if len(self.read) == MAX_STATEMENTS:
                    raise self.error(f"more than {MAX_STATEMENTS} statements; evaluate them in several calls")
                self.read.append(self.statement())
        if not self.read:
            raise self.error("no statement; write one as in y[i] = A[i,j] * x[j]")
        return self.read

    def statement(self) -> Assign:
        start = self.here
        target = self.atom()
        if not isinstance(target, Access):
            raise self.error("a statement starts with the tensor it assigns, as in y[i] = ...", start)
        operator = self.accept("assign")
        if operator is None:
            raise self.error(f"'=' or an assignment such as '+=' expected after {target}")
        monoid = next((m.name for m in MONOIDS.values() if m.assign == operator.text), None)
        self.bound = tuple(i.name for i in target.indices if isinstance(i, Index))
        self.slices = []
        value = self.comparison()
        if self.here.kind not in ("newline", "end"):
            raise self.error(f"an operator or the end of the line expected, found {self.here.text!r}")
        return Assign(target, monoid, self.named(value, start))

    def named(self, value: Expr, start: Token) -> Expr:
        """`Y[i,j] = A[2:10:2,j]`: slices take the names of target index variables without another source."""
        known = {*free_indices(value), *self.given}
        wanted = [name for name in self.bound if name not in known]
        names: dict[str, str] = {}
        for sliced in self.slices:
            if wanted and len(sliced) == len(wanted):
                names.update(zip(sliced, wanted, strict=True))
        for old, new in names.items():
            size = self.sizes.pop(old, None)
            if size is not None and self.sizes.setdefault(new, size) != size:
                raise self.error(f"the slices of {new} have {self.sizes[new]} and {size} entries", start)
        return rename_indices(value, names)

    def comparison(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels of brackets; name a part of the expression")
        left = self.sum()
        if token := self.accept("operator", *_symbols(COMPARISON)):
            left = Call(_infix(token.text), (left, self.sum()))
            if self.here.text in _symbols(COMPARISON):
                raise self.error("comparisons do not chain; use logical_and")
        self.depth -= 1
        return left

    def sum(self) -> Expr:
        return self.chain(_symbols(SUM), self.product)

    def product(self) -> Expr:
        return self.chain(_symbols(PRODUCT), self.unary)

    def chain(self, symbols: tuple[str, ...], part: Callable[[], Expr]) -> Expr:
        """A left-associative chain of operators."""
        left, terms = part(), 1
        while token := self.accept("operator", *symbols):
            terms += 1
            if terms > MAX_TERMS:
                raise self.error(f"more than {MAX_TERMS} terms in a row; name some in a statement before")
            left = Call(_infix(token.text), (left, part()))
        return left

    def unary(self) -> Expr:
        if not self.accept("operator", "-"):
            return self.power()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} signs in a row")
        is_literal = self.here.kind == "number" or self.here.text in ("inf", "nan")
        operand = self.unary()
        self.depth -= 1
        if is_literal and isinstance(operand, Const):
            return Const(-operand.value)
        return Call("neg", (operand,))

    def power(self) -> Expr:
        base = self.atom()
        if self.accept("operator", "**"):
            return Call("pow", (base, self.unary()))
        return base

    def atom(self) -> Expr:
        if token := self.accept("number"):
            is_integer = token.text.isdecimal()
            return Const(int(token.text) if is_integer else float(token.text))
        if self.accept("operator", "("):
            inner = self.comparison()
            self.expect(")", "the expression in parentheses")
            return inner
        token = self.accept("name")
        if token is None:
            found = repr(self.here.text) if self.here.text.strip() else "the end of the statement"
            raise self.error(f"a number, a tensor or a function expected, found {found}")
        if token.text in CONSTANTS:
            return Const(CONSTANTS[token.text])
        if self.accept("operator", "["):
            return self.access(token)
        if self.accept("operator", "("):
            return self.call(token)
        return Index(token.text) if token.text in self.indices else Access(token.text)

    def access(self, name: Token) -> Access:
        if name.text in self.indices:
            raise self.error(f"{name.text} is an index variable and a tensor; rename one of them", name)
        indices: list[Expr] = []
        before = self.indices
        while not self.accept("operator", "]"):
            if indices:
                self.expect(",", f"an index of {name.text}")
            indices.append(self.index(name.text, len(indices)))
        if added := self.indices - before:
            self.slices.append(tuple(n for index in indices for n in free_indices(index) if n in added))
        return Access(name.text, tuple(indices))

    def index(self, tensor: str, mode: int) -> Expr:
        """An index of an access; a slice becomes a fresh index variable."""
        if self.here.text == ":":
            return self.slice(tensor, mode, None)
        start = self.here
        expr = self.sum()
        if self.here.text == ":":
            return self.slice(tensor, mode, self.limit(expr, start))
        if isinstance(expr, Const) and type(expr.value) is int and expr.value < 0:
            return Const(expr.value + (self.extent_of(tensor, mode) or 0))
        return expr

    def slice(self, tensor: str, mode: int, start: int | None) -> Expr:
        """`start:stop:step` as an affine index over a new variable, `2*A_slice + start`."""
        token = self.expect(":", "the start of a slice")
        name = fresh(f"{tensor}_slice", self.indices)
        self.indices |= {name}
        bounds: list[int | None] = [None, None]
        for n in range(2):
            if self.here.kind == "number" or self.here.text == "-":
                at = self.here
                bounds[n] = self.limit(self.unary(), at)
            if n == 1 or not self.accept("operator", ":"):
                break
        stop, step = bounds[0], 1 if bounds[1] is None else bounds[1]
        if (start or 0, stop, step) == (0, None, 1):
            return Index(name)
        is_counted = None in (start, stop) or min(start or 0, stop or 0) < 0
        extent = self.extent_of(tensor, mode) if is_counted else None
        try:
            read = slice_syntax.places(start, stop, step, extent, f"mode {mode} of {tensor}")
        except ValueError as error:
            raise self.error(str(error), token) from None
        self.sizes[name] = len(read)
        return slice_syntax.index_of(name, read)

    def extent_of(self, tensor: str, mode: int) -> int | None:
        """The extent of a mode, `None` if unknown."""
        shape = self.shape_of(tensor)
        return None if shape is None or mode >= len(shape) else shape[mode]

    def shape_of(self, tensor: str) -> Sequence[int] | None:
        """The shape of an operand or of the result of an earlier statement, `None` if unknown."""
        if tensor in self.shapes:
            return self.shapes[tensor]
        target = next((s.target for s in self.read if s.target.tensor == tensor), None)
        if target is None:
            return None
        read = [access.tensor for access in accesses(self.read)]
        shapes = {name: shape for name, shape in self.shapes.items() if name in read}
        extents = bind_extents(self.read, shapes, self.given_sizes | self.sizes)
        return [extents[index.name] for index in target.indices if isinstance(index, Index)]

    def limit(self, expr: Expr, token: Token) -> int:
        """The value of a slice bound, negative relative to the end of the mode."""
        if isinstance(expr, Const) and type(expr.value) is int:
            return expr.value
        raise self.error("the bounds of a slice are whole numbers", token)

    def call(self, name: Token) -> Expr:
        """The expression starting with `name(`: a reduction, `stored` or a function."""
        if name.text in MONOIDS or name.text in PLACES:
            indices = self.reduced_indices(name.text)
            if indices:
                return self.reduction(name, indices)
            if name.text not in FUNCTIONS:
                raise self.error(
                    f"{name.text} needs the index variables it runs over: {name.text}(k, A[i,k])", name
                )
        args: list[Expr] = []
        while not self.accept("operator", ")"):
            if args:
                self.expect(",", f"an argument of {name.text}")
            args.append(self.comparison())
        if name.text in ("min", "max") and len(args) > 2:
            return reduce(lambda left, right: Call(name.text, (left, right)), args)
        if name.text == EXTENT:
            match args:
                case [Index(named)] | [Access(named, ())]:
                    return Extent(named)
            raise self.error("extent takes one index variable: extent(j)", name)
        if name.text != "stored":
            return Call(name.text, tuple(args))
        if len(args) != 1 or not isinstance(args[0], Access):
            raise self.error("stored takes one access of a tensor: stored(A[i,j])", name)
        return Stored(args[0])

    def reduced_indices(self, monoid: str) -> tuple[str, ...]:
        """The index variables before the body of a reduction; none for the function of the same name."""
        names: list[str] = []
        place = self.place
        while self.tokens[place].kind == "name" and self.tokens[place + 1].text == ",":
            name = self.tokens[place].text
            if name not in self.indices or name in names or (monoid in FUNCTIONS and name in self.bound):
                break
            names.append(name)
            place += 2
        return tuple(names)

    def reduction(self, name: Token, indices: tuple[str, ...]) -> Reduce:
        self.place += 2 * len(indices)
        outside, self.bound = self.bound, self.bound + indices
        body = self.comparison()
        self.bound = outside
        self.expect(")", f"the body of {name.text}")
        return Reduce(name.text, indices, body)


def _index_names(tokens: tuple[Token, ...]) -> frozenset[str]:
    """The names inside the brackets of accesses and before the body of a reduction."""
    names: set[str] = set()
    depth = 0
    for n, token in enumerate(tokens):
        depth += (token.text == "[") - (token.text == "]")
        if token.kind == "name" and depth > 0 and (token.text, tokens[n + 1].text) != (EXTENT, "("):
            names.add(token.text)
        is_reduction = (token.text in MONOIDS and token.text not in FUNCTIONS) or token.text in PLACES
        if is_reduction and tokens[n + 1].text == "(":
            place = n + 2
            while tokens[place].kind == "name" and tokens[place + 1].text == ",":
                names.add(tokens[place].text)
                place += 2
    return frozenset(names)


def _symbols(precedence: int) -> tuple[str, ...]:
    """The infix operators of a precedence."""
    return tuple(f.symbol for f in FUNCTIONS.values() if f.precedence == precedence and f.arity == 2)


def _infix(symbol: str) -> str:
    """The function written as an infix operator."""
    return next(f.name for f in FUNCTIONS.values() if f.symbol == symbol and f.arity == 2)
