"""A kernel of loop IR as a self-contained C++ translation unit.

In: a `Function`. Out: text without headers, defining

    extern "C" int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context)

Sizes and buffers come in the order of the function's fields; an output slot is the number of the output's buffer.
The size `serial_threshold` is the amount of work below which a parallel loop runs on one thread.
"""

from typing import Final

from sparsify.compiler.cpp import names, parallel, random_numbers, register_tables
from sparsify.compiler.cpp.expressions import Expressions
from sparsify.compiler.cpp.helpers import (
    arithmetic,
    bits,
    bitset,
    complex_numbers,
    compress,
    dot_products,
    elementary,
    float16,
    select,
    shuffles,
    table,
    types,
    vector_memory,
    wide,
)
from sparsify.compiler.cpp.helpers.unit import Template, Unit, indent
from sparsify.compiler.cpp.statements import Statements
from sparsify.compiler.loops import nodes

TEMPLATES: Final[dict[str, Template]] = {
    **float16.TEMPLATES,
    **dot_products.TEMPLATES,
    **vector_memory.TEMPLATES,
    **bitset.TEMPLATES,
    **compress.TEMPLATES,
    **table.TEMPLATES,
    **select.TEMPLATES,
    **bits.TEMPLATES,
    **register_tables.TEMPLATES,
    **wide.TEMPLATES,
    **shuffles.TEMPLATES,
    **arithmetic.TEMPLATES,
    **elementary.TEMPLATES,
    **random_numbers.TEMPLATES,
    **parallel.TEMPLATES,
}

CONTEXT: Final = """\
struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};"""
SIGNATURE: Final = (
    "int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {"
)


def emit(function: nodes.Function) -> str:
    """The C++ text of a kernel; the same function gives the same text everywhere."""
    unit = Unit(TEMPLATES, complex_numbers.TEMPLATES)
    unit.declare("context", CONTEXT)
    complex_numbers.declare(unit, function)
    unit.computes_in_regions = parallel.computes_in_regions(function.body)
    expressions = Expressions(unit, names.assign(function), {b.name: b.dtype for b in function.buffers})
    body = Statements(function, expressions, parallel.outline).lines(function.body)
    used = set(names.mentioned(function.body))
    lines = []
    for slot, size in enumerate(function.sizes):
        if size in used:
            lines.append(f"const int64_t {expressions.name(size)} = sizes[{slot}];")
    for slot, buffer in enumerate(function.buffers):
        if buffer.name in used:
            lines.append(_unpack(buffer, slot, expressions.name(buffer.name)))
    attributes = 'visibility("default"), cold' if unit.computes_in_regions else 'visibility("default")'
    head = f'extern "C" __attribute__(({attributes}))'
    kernel = "\n".join([head, SIGNATURE, *indent([*lines, *body, "return 0;"]), "}"])
    comment = "".join(f"// {line}".rstrip() + "\n" for line in function.comment.splitlines())
    return comment + unit.text(kernel)


def _unpack(buffer: nodes.Buffer, slot: int, name: str) -> str:
    element = types.ELEMENTS[buffer.dtype]
    const = "" if buffer.output else "const "
    return f"{const}{element} *__restrict {name} = ({const}{element} *)buffers[{slot}];"
