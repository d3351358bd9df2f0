"""Complex numbers: pairs with the operators of C++, functions by the C library.

In: a kernel with sums and products of `complex64`. Out: `struct complex64 { float real, imag; };` with operators.

Products are written out as torch writes them; quotients scale by the larger part of the divisor.

Source: Smith, Algorithm 116: Complex division, 1962.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.arithmetic import define
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.ir import dtypes
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes

LIBRARY: Final = (
    *("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh"),
)


def declare(unit: Unit, function: nodes.Function) -> None:
    """The complex types of a kernel, declared before everything else."""
    found = {buffer.dtype for buffer in function.buffers}
    found |= {node.type.dtype for node in find(function.body, nodes.Convert, nodes.Op)}
    for dtype in dtypes.REAL:
        if dtype in found:
            unit.declare(dtype, _definition(dtype))


def _definition(dtype: str) -> str:
    part = types.ELEMENTS[dtypes.REAL[dtype]]
    pair = f"({dtype} x, {dtype} y)"
    return f"""\
struct {dtype} {{
  {part} real, imag;
}};
{INLINE}{dtype} operator-({dtype} x) {{ return {{-x.real, -x.imag}}; }}
{INLINE}{dtype} operator+{pair} {{ return {{x.real + y.real, x.imag + y.imag}}; }}
{INLINE}{dtype} operator-{pair} {{ return {{x.real - y.real, x.imag - y.imag}}; }}
{INLINE}{dtype} operator*{pair} {{
  return {{x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real}};
}}
{INLINE}{dtype} operator/{pair} {{
  const {part} real = y.real < 0 ? -y.real : y.real, imag = y.imag < 0 ? -y.imag : y.imag;
  if (real >= imag) {{
    if (real == 0) return {{x.real / real, x.imag / real}};
    const {part} ratio = y.imag / y.real, scale = 1 / (y.real + y.imag * ratio);
    return {{(x.real + x.imag * ratio) * scale, (x.imag - x.real * ratio) * scale}};
  }}
  const {part} ratio = y.real / y.imag, scale = 1 / (y.real * ratio + y.imag);
  return {{(x.real * ratio + x.imag) * scale, (x.imag * ratio - x.real) * scale}};
}}
{INLINE}{dtype} &operator+=({dtype} &x, {dtype} y) {{ return x = x + y; }}
{INLINE}bool operator=={pair} {{ return x.real == y.real && x.imag == y.imag; }}
{INLINE}bool operator!={pair} {{ return !(x == y); }}"""


def converted(text: str, source: str, dtype: str) -> str:
    """A number converted from or to a complex dtype; a real target takes the real part.

    >>> converted("x", "float32", "complex64"), converted("z", "complex64", "float64")
    ('complex64{(float)(x), 0}', '(double)(z).real')
    """
    part = types.ELEMENTS[dtypes.real(dtype)]
    if dtype not in dtypes.REAL:
        return f"({part})({text}).real"
    if source not in dtypes.REAL:
        return f"{dtype}{{({part})({text}), 0}}"
    return f"as_{dtype}({text})"


def declare_conversion(unit: Unit, source: str, dtype: str) -> None:
    """Declares the conversion of the parts of a complex number to another precision."""
    part = types.ELEMENTS[dtypes.REAL[dtype]]
    body = f"return {{({part})x.real, ({part})x.imag}};"
    unit.declare(f"conversion to {dtype}", f"{INLINE}{dtype} as_{dtype}({source} x) {{ {body} }}")


def _library(name: str, arguments: str = "x") -> Template:
    """The template of a function of the C library."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        part = types.ELEMENTS[dtypes.REAL[dtype]]
        suffix = "f" if dtype == "complex64" else ""
        lines = []
        for argument in arguments.split():
            lines.append(f"_Complex {part} {argument}c;")
            lines.append(f"__real__ {argument}c = {argument}.real, __imag__ {argument}c = {argument}.imag;")
        given = ", ".join(f"{argument}c" for argument in arguments.split())
        lines.append(f"const _Complex {part} result = __builtin_c{name}{suffix}({given});")
        lines.append("return {__real__ result, __imag__ result};")
        return define(unit, name, dtype, lanes, arguments, lines)

    return template


def _log10(unit: Unit, dtype: str, lanes: int) -> str:
    scale = types.literal(0.4342944819032518, dtypes.REAL[dtype])
    log = unit.use("log", dtype, lanes)
    return define(
        unit,
        "log10",
        dtype,
        lanes,
        "x",
        [f"const {dtype} found = {log}(x);", f"return {{found.real * {scale}, found.imag * {scale}}};"],
    )


def _of_one(name: str, body: str) -> Template:
    """The template of a function with a one-line body, `ONE` and `USE_exp` filled in."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        text = body.replace("ONE", types.literal(1, dtype))
        for used in ("exp", "sigmoid"):
            if f"USE_{used}" in text:
                text = text.replace(f"USE_{used}", unit.use(used, dtype, lanes))
        return define(unit, name, dtype, lanes, "x", [f"return {text};"])

    return template


def _part(name: str, body: str) -> Template:
    """The template of a function with a real result."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        suffix = "f" if dtype == "complex64" else ""
        part = types.ELEMENTS[dtypes.REAL[dtype]]
        return f"{INLINE}{part} {name}_{dtype}({dtype} x) {{\n  return {body.replace('SUFFIX', suffix)};\n}}"

    return template


TEMPLATES: Final[dict[str, Template]] = {
    **{name: _library(name) for name in LIBRARY},
    "pow": _library("pow", "x y"),
    "log10": _log10,
    "abs": _part("abs", "__builtin_hypotSUFFIX(x.real, x.imag)"),
    "real": _part("real", "x.real"),
    "conj": _of_one("conj", "{x.real, -x.imag}"),
    "square": _of_one("square", "x * x"),
    "reciprocal": _of_one("reciprocal", "ONE / x"),
    "sigmoid": _of_one("sigmoid", "ONE / (ONE + USE_exp(-x))"),
    "silu": _of_one("silu", "x * USE_sigmoid(x)"),
}
