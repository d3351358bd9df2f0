"""Scratch memory: on the stack if small and of constant size, else aligned memory of the C library.

In: `scratch w: float32[128]`. Out: `alignas(64) float w[128];`.
"""

from typing import Final

from sparsify.compiler.cpp.expressions import PREFIX, Expressions, within
from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.ir.status import OUT_OF_MEMORY
from sparsify.compiler.loops import nodes

STACK_BYTES: Final = 32 * 1024

SCRATCH: Final = """\
extern "C" void *aligned_alloc(__SIZE_TYPE__ alignment, __SIZE_TYPE__ bytes) noexcept;
extern "C" void free(void *memory) noexcept;

struct Scratch {
  void *memory;
  __attribute__((noinline)) explicit Scratch(int64_t bytes) noexcept
      : memory(aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  __attribute__((noinline)) ~Scratch() noexcept { free(memory); }
};"""


def fits_stack(stmt: nodes.Allocate) -> bool:
    """Whether scratch memory is of constant and small size."""
    match stmt.count:
        case nodes.Literal(value, _):
            return value * types.BYTES[stmt.dtype] <= STACK_BYTES
    return False


def lines(e: Expressions, stmt: nodes.Allocate) -> list[str]:
    """The definition of scratch memory; the function returns a status if memory is exhausted."""
    element, name = types.ELEMENTS[stmt.dtype], e.name(stmt.buffer)
    match stmt.count:
        case nodes.Literal(value, _) if fits_stack(stmt):
            return [f"alignas(64) {element} {name}[{max(1, int(value))}];"]
    e.unit.declare("scratch", SCRATCH)
    owner = e.fresh(f"{name}_scratch")
    size = f"{within(e.write(stmt.count), PREFIX)} * {types.BYTES[stmt.dtype]}"
    return [
        f"const Scratch {owner}({size});",
        f"{element} *__restrict {name} = ({element} *){owner}.memory;",
        f"if (!{name}) return {OUT_OF_MEMORY};",
    ]
