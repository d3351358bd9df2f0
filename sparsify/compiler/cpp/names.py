"""C++ names for the variables and buffers of a kernel.

In: the names `A2_pos`, `w.0`, `int`. Out: `A2_pos`, `w_0`, `int_`: identifiers different from C++ keywords,
from names used by generated code, and from each other.
"""

import re
from itertools import count, islice
from typing import Final

from sparsify.compiler.cpp.helpers.types import ELEMENTS
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
    while xor xor_eq linux unix
"""
_OWN = """
    sizes buffers context Context Scratch aligned_alloc free omp_get_thread_num omp_get_num_threads
    sparsify_kernel thread threads chunk chunks extent next
"""
KEYWORDS: Final = frozenset(_KEYWORDS.split())
OWN: Final = frozenset(_OWN.split())
# Types and helper functions end in the name of a type.
OWN_PATTERN: Final = re.compile(
    rf"(.*(?:{'|'.join(dtype for dtype in ELEMENTS)})(?:x\d+)?(?:_memory)?|u?int\d+_t"
    r"|.*__.*|_[A-Z].*|SPARSIFY_.*)\Z"
)

# Nodes that mention names: variables, tables, parallel loops and all with a field `buffer`.
MENTIONING: Final = (
    *(
        nodes.Var,
        nodes.ParallelFor,
        nodes.Table,
        nodes.Enter,
        nodes.SortTable,
        nodes.ClearTable,
        nodes.Compress,
    ),
    *(
        kind
        for kind in vars(nodes).values()
        if isinstance(kind, type) and issubclass(kind, Node) and "buffer" in kind.__dataclass_fields__
    ),
)


def assign(function: nodes.Function) -> dict[str, str]:
    """The C++ name of every size, buffer and variable, in order of appearance."""
    wanted = [*function.sizes, *(buffer.name for buffer in function.buffers)]
    wanted += mentioned(function.body)
    result: dict[str, str] = {}
    taken: set[str] = set()
    plain = {name for name in wanted if _is_usable(name)}
    for name in dict.fromkeys(wanted):
        text = name if name in plain else _rename(name, taken | plain)
        taken.add(text)
        result[name] = text
    return result


def mentioned(node: Node) -> list[str]:
    """Names of the variables, sizes and buffers in a tree, in order of appearance."""
    found: dict[str, None] = {}
    for part in find(node, *MENTIONING):
        match part:
            case nodes.Var(name, _):
                found[name] = None
            case nodes.ParallelFor(balance=balance):
                found |= dict.fromkeys(
                    ["serial_threshold"] if balance is None else ["serial_threshold", balance]
                )
            case nodes.Table(table, buffer, keys):
                found |= dict.fromkeys([table, buffer, keys])
            case nodes.Enter(_, table) | nodes.SortTable(table) | nodes.ClearTable(table):
                found[table] = None
            case nodes.Compress(_, buffer, values, source):
                found |= dict.fromkeys([source] if buffer is None else [buffer, values, source])
            case _ if (buffer := getattr(part, "buffer", None)) is not None:
                found[buffer] = None
    return list(found)


def _is_usable(name: str) -> bool:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return False
    return name not in KEYWORDS and name not in OWN and not OWN_PATTERN.match(name)


def _rename(name: str, taken: set[str]) -> str:
    text = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", name))
    if not re.match(r"[A-Za-z]", text) or text.startswith("SPARSIFY_"):
        text = f"v{text}"
    numbers = (f"{text}{'' if text.endswith('_') else '_'}{number or ''}" for number in count())
    return next(t for t in (text, *islice(numbers, len(taken) + 2)) if t not in taken and _is_usable(t))
