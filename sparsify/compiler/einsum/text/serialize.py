"""Exact serialization of programs: the `repr` of dataclasses.

In: `Const(value=0.5)` and the allowed classes. Out: the same node; nothing is executed.
"""

import ast
from collections.abc import Mapping
from contextlib import suppress
from math import inf, nan
from typing import Any, Final

from sparsify.compiler.einsum import nodes
from sparsify.compiler.ir.node import Node
from sparsify.errors import SparsifyError
from sparsify.runtime.locks import Lock
from sparsify.runtime.padded_memory import Interior
from sparsify.storage.format import Format

NUMBERS: Final = {"inf": inf, "nan": nan}
PARSING: Final = Lock()
ATTEMPTS: Final = 8
CLASSES: Final[Mapping[str, type]] = {
    **{n: k for n, k in vars(nodes).items() if isinstance(k, type) and issubclass(k, Node)},
    "Format": Format,
    "Interior": Interior,
}


def read(text: str, classes: Mapping[str, type] = CLASSES) -> Any:
    """A reader of `repr`: numbers, texts, tuples and objects of the given classes.

    Raises:
        SparsifyError: the text holds anything else.

    >>> read(repr(nodes.Call("add", (nodes.Index("i"), nodes.Const(-inf)))))
    Call(function='add', args=(Index(name='i'), Const(value=-inf)))
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(found):
                return found
            case ast.Name(name) if name in NUMBERS:
                return NUMBERS[name]
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):  # a complex number
                return value(left) + value(right) if isinstance(sign, ast.Add) else value(left) - value(right)
            case ast.Tuple(items):
                return tuple(value(item) for item in items)
            case ast.Call(ast.Name(name), given, named) if name in classes:
                fields = {str(word.arg): value(word.value) for word in named}
                return classes[name](*(value(item) for item in given), **fields)
        raise _unknown(text)

    try:
        return value(_syntax_tree(text).body)
    except (SyntaxError, TypeError):
        raise _unknown(text) from None


def _syntax_tree(text: str) -> ast.Expression:
    """The syntax tree of a text, safe against concurrent parsing.

    Before Python 3.13 all threads share one depth counter of syntax trees: a thread interrupted while building a tree
    gets a SystemError for a correct text (python/cpython#106905).
    """
    with PARSING:
        for _ in range(ATTEMPTS - 1):
            with suppress(SystemError):
                return ast.parse(text, mode="eval")
        return ast.parse(text, mode="eval")


def _unknown(text: str) -> SparsifyError:
    return SparsifyError(
        f"{text[:60]!r} is no program of this version of sparsify",
        "trace or export the model again; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 leaves graphs on disk unread",
    )
