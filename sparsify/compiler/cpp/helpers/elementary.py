"""Elementary functions (exp, log, tanh, erf and similar) on scalars and vectors, without the C library.

In: `exp` of `float32x8`. Out: the C++ text of `exp_float32x8(x)` and of the functions called.

Errors: within 2 ulp in float32 (2.5 for tanh and sigmoid) and 1e-15 relative in float64; of silu and the gelus
within 2 units of |x| times the machine epsilon, their far tails being products with tiny numbers. Scalars and
lanes of vectors run the same operations.

Sources: Cody and Waite, Software Manual for the Elementary Functions, 1980 (reductions);
Shepherd and Laframboise, Chebyshev approximation of (1 + 2x) exp(x^2) erfc(x), 1981 (erf).
"""

from dataclasses import dataclass
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.arithmetic import constant, define, float_suffix, lanewise
from sparsify.compiler.cpp.helpers.coefficients import COEFFICIENTS
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE

LOG2_E: Final = 1.4426950408889634
# Bytes of vectors with an instruction to multiply by powers of 2.
SCALED_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Precision:
    """The constants of a floating point type.

    Attributes:
        mantissa: stored bits of the mantissa.
        bias: bias of the exponent.
        rounder: 1.5 * 2**mantissa: adding the constant rounds to an integer in the low bits.
        ln2, half_pi: parts of log(2) and pi / 2, short enough for exact products with the integer.
        exp_range: bounds beyond which exp is 0 or infinite.
        reducible: largest argument reduced by sin and cos themselves.
    """

    mantissa: int
    bias: int
    ln2: tuple[float, ...]
    half_pi: tuple[float, ...]
    exp_range: tuple[float, float]
    reducible: float

    @property
    def rounder(self) -> float:
        """1.5 * 2**mantissa."""
        return 1.5 * 2.0**self.mantissa


PRECISIONS: Final = {
    "float32": Precision(
        23,
        127,
        (0.693145751953125, 1.428606765330187e-06),
        (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12),
        (-105.0, 89.0),
        8192.0,
    ),
    "float64": Precision(
        52,
        1023,
        (0.6931471805601177, -1.7239444525614835e-13),
        (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32),
        (-746.0, 710.0),
        1048576.0,
    ),
}


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the bodies of functions for one type."""

    unit: Unit
    dtype: str
    lanes: int

    @property
    def value(self) -> str:
        """The floating point type."""
        return self.unit.type(self.dtype, self.lanes)

    @property
    def integer(self) -> str:
        """The integer type of the same width."""
        return self.unit.type(types.integer_as_wide(self.dtype), self.lanes)

    @property
    def precision(self) -> Precision:
        """The constants of the type."""
        return PRECISIONS[self.dtype]

    def number(self, value: float) -> str:
        """A scalar constant used next to a vector, `0.5f`."""
        return types.literal(value, self.dtype)

    def every(self, value: float) -> str:
        """A constant in every lane."""
        return constant(self.unit, value, self.dtype, self.lanes)

    def bits(self, text: str) -> str:
        """The bits of a floating point value as integers."""
        return f"({self.integer}){text}" if self.lanes > 1 else f"__builtin_bit_cast({self.integer}, {text})"

    def from_bits(self, text: str) -> str:
        """The floating point value with the given bits."""
        return f"({self.value})({text})" if self.lanes > 1 else f"__builtin_bit_cast({self.value}, {text})"

    def use(self, name: str) -> str:
        """The name of another function for the same type."""
        return self.unit.use(name, self.dtype, self.lanes)

    def polynomial(self, name: str, result: str, variable: str) -> list[str]:
        """Lines that set `result` to the named polynomial, by Horner's rule."""
        *rest, last = COEFFICIENTS[name, self.dtype]
        lines = [f"{self.value} {result} = {self.every(last)};"]
        return lines + [f"{result} = {result} * {variable} + {self.number(c)};" for c in reversed(rest)]

    def define(self, name: str, arguments: str, body: list[str]) -> str:
        """The definition of a function."""
        return define(self.unit, name, self.dtype, self.lanes, arguments, body)

    def with_sign_of(self, magnitude: str, sign: str) -> str:
        """`magnitude` (nonnegative) with the sign of `sign`."""
        bit = f"({self.bits(sign)} & {-(2 ** (types.BYTES[self.dtype] * 8 - 1) - 1)} - 1)"
        magnitude_bits = self.bits(magnitude)
        return self.from_bits(f"{magnitude_bits} | {bit}")


def _reduced_exponent(w: Writer) -> list[str]:
    """`bounded = n log(2) + r` with integral n, and `p = (exp(r) - 1 - r) / r**2`."""
    high, low = w.precision.ln2
    rounder = w.number(w.precision.rounder)
    return [
        f"const {w.value} shifted = bounded * {w.number(LOG2_E)} + {rounder};",
        f"const {w.value} n = shifted - {rounder};",
        f"const {w.value} r = (bounded - n * {w.number(high)}) - n * {w.number(low)};",
        *w.polynomial("expm1", "p", "r"),
    ]


def _sum_one(w: Writer) -> list[str]:
    """`e = 1 + r + r * r * p`, with the rounding error of `1 + r` added back."""
    one = w.number(1)
    return [
        f"const {w.value} sum = {one} + r;",
        f"const {w.value} e = sum + ((r - (sum - {one})) + r * r * p);",
    ]


def _exp(unit: Unit, dtype: str, lanes: int) -> str:
    """The factor 2**n in two halves: neither overflows, and results may be denormal; by one instruction of AVX-512."""
    w = Writer(unit, dtype, lanes)
    low, high = w.precision.exp_range
    rounder, bias, mantissa = w.number(w.precision.rounder), w.precision.bias, w.precision.mantissa
    body = [
        f"const {w.value} above = {w.use('at_least')}({w.every(low)}, x);",
        f"const {w.value} bounded = {w.use('at_most')}({w.every(high)}, above);",
        *_reduced_exponent(w),
        f"const {w.value} e = (r * r * p + r) + {w.number(1)};",
    ]
    halves = [
        f"const {w.integer} zero = {w.bits(f'({w.every(w.precision.rounder)})')};",
        f"const {w.integer} half = {w.bits(f'(n * {w.number(0.5)} + {rounder})')} - zero;",
        f"const {w.integer} rest = {w.bits('shifted')} - zero - half;",
        f"const {w.value} first = {w.from_bits(f'(half + {bias}) << {mantissa}')};",
        f"const {w.value} second = {w.from_bits(f'(rest + {bias}) << {mantissa}')};",
        "return e * first * second;",
    ]
    if lanes * types.BYTES[dtype] != SCALED_BYTES:
        return w.define("exp", "x", body + halves)
    form, mask = ("ps", "short") if dtype == "float32" else ("pd", "char")
    scaled = f"__builtin_ia32_scalef{form}512_mask(e, n, {w.value}{{}}, (unsigned {mask})-1, 4)"
    return w.define(
        "exp", "x", [*body, "#ifdef __AVX512F__", f"return {scaled};", "#else", *halves, "#endif"]
    )


def _tanh(unit: Unit, dtype: str, lanes: int) -> str:
    """With `m = exp(-2 |x|) - 1`: `-m / (2 + m)` for small x, `1 - 2 exp(-2 |x|) / (2 + m)` for large."""
    w = Writer(unit, dtype, lanes)
    bias, mantissa = w.precision.bias, w.precision.mantissa
    least = -80.0
    exponent = f"({w.bits('shifted')} - zero + {bias}) << {mantissa}"
    body = [
        f"const {w.value} doubled = {w.number(-2)} * {w.use('abs')}(x);",
        f"const {w.value} bounded = doubled < {w.number(least)} ? {w.every(least)} : doubled;",
        *_reduced_exponent(w),
        f"const {w.integer} zero = {w.bits(f'({w.every(w.precision.rounder)})')};",
        f"const {w.value} power = {w.from_bits(exponent)};",
        f"const {w.value} m = (power - {w.number(1)}) + power * (r + r * r * p);",
        *_sum_one(w),
        f"const {w.value} top = doubled < {w.number(-2)} ? {w.number(-2)} * e * power : -m;",
        f"const {w.value} ratio = top / (m + {w.number(2)});",
        f"const {w.value} result = doubled < {w.number(-2)} ? {w.number(1)} + ratio : ratio;",
        f"return {w.with_sign_of('result', 'x')};",
    ]
    return w.define("tanh", "x", body)


def _log(unit: Unit, dtype: str, lanes: int) -> str:
    """`x = 2**k (1 + f)` with `1 + f` in sqrt(1/2)..sqrt(2), and `log(1 + f)` by `s = f / (2 + f)`."""
    w = Writer(unit, dtype, lanes)
    mantissa, bias = w.precision.mantissa, w.precision.bias
    unsigned = unit.type("u" + types.integer_as_wide(dtype), lanes)
    high, low = w.precision.ln2
    tiny, lift = 2.0 ** (1 - bias), mantissa + 2
    sign = f"((u{types.ELEMENTS[types.integer_as_wide(dtype)]})1 << {types.BYTES[dtype] * 8 - 1})"
    offset = 2 ** (types.BYTES[dtype] * 8 - mantissa - 1)
    fraction = f"{w.bits('scaled')} - power"
    as_float = w.from_bits(f"({w.integer})(top >> {mantissa}) | {w.bits(f'({w.every(2.0**mantissa)})')}")
    body = [
        f"const {w.value} scaled = x < {w.number(tiny)} ? x * {w.number(2.0**lift)} : x;",
        f"const {w.integer} distance = {w.bits('scaled')} - {w.bits(f'({w.every(0.5**0.5)})')};",
        f"const {w.integer} power = distance & {-(2**mantissa)};",
        f"const {w.value} f = {w.from_bits(fraction)} - {w.number(1)};",
        f"const {unsigned} top = ({unsigned})distance ^ {sign};",
        f"const {w.value} whole = {as_float} - {w.number(2.0**mantissa + offset)};",
        f"const {w.value} k = x < {w.number(tiny)} ? whole - {w.number(lift)} : whole;",
        f"const {w.value} s = f / ({w.number(2)} + f);",
        f"const {w.value} z = s * s;",
        *w.polynomial("log", "p", "z"),
        f"const {w.value} square = {w.number(0.5)} * f * f;",
        f"const {w.value} tail = s * (square + z * p) + k * {w.number(low)};",
        f"const {w.value} result = k * {w.number(high)} - ((square - tail) - f);",
        f"const {w.value} finite = x < {w.number(float('inf'))} ? result : x;",
        f"const {w.value} edge = x == {w.number(0)} ? {w.every(-float('inf'))} : {w.every(float('nan'))};",
        f"return x > {w.number(0)} ? finite : edge;",
    ]
    return w.define("log", "x", body)


def _log10(unit: Unit, dtype: str, lanes: int) -> str:
    w = Writer(unit, dtype, lanes)
    return w.define("log10", "x", [f"return {w.use('log')}(x) * {w.number(0.4342944819032518)};"])


def _sigmoid(unit: Unit, dtype: str, lanes: int) -> str:
    """`e / (1 + e)` or `1 / (1 + e)` with `e = exp(-|x|)`: no overflow, and tails to the last denormal."""
    w = Writer(unit, dtype, lanes)
    body = [
        f"const {w.value} e = {w.use('exp')}(-{w.use('abs')}(x));",
        f"const {w.value} top = x < {w.number(0)} ? e : {w.every(1)};",
        f"return top / ({w.number(1)} + e);",
    ]
    return w.define("sigmoid", "x", body)


def _silu(unit: Unit, dtype: str, lanes: int) -> str:
    w = Writer(unit, dtype, lanes)
    return w.define("silu", "x", [f"return x * {w.use('sigmoid')}(x);"])


def _gelu_tanh(unit: Unit, dtype: str, lanes: int) -> str:
    """`0.5 x (1 + tanh(u)) = x sigmoid(2 u)`."""
    w = Writer(unit, dtype, lanes)
    double = f"{w.number(1.5957691216057308)} * (x + {w.number(0.044715)} * x * x * x)"
    return w.define("gelu_tanh", "x", [f"return x * {w.use('sigmoid')}({double});"])


def _erfc_tail(unit: Unit, dtype: str, lanes: int) -> str:
    """erfc(x) for x >= 1; the relative error grows like the error of exp(-x * x), by x * x roundings."""
    w = Writer(unit, dtype, lanes)
    body = [
        f"const {w.value} b = x > {w.number(30)} ? {w.every(30)} : x;",
        f"const {w.value} t = (b - {w.number(3)}) / (b + {w.number(3)});",
        *w.polynomial("erfc", "p", "t"),
        f"return p * {w.use('exp')}(-b * b) / ({w.number(1)} + {w.number(2)} * b);",
    ]
    return w.define("erfc_tail", "x", body)


def _erf(unit: Unit, dtype: str, lanes: int) -> str:
    w = Writer(unit, dtype, lanes)
    body = [
        f"const {w.value} a = {w.use('abs')}(x);",
        f"const {w.value} z = x * x;",
        *w.polynomial("erf", "p", "z"),
        f"const {w.value} large = {w.number(1)} - {w.use('erfc_tail')}(a);",
        f"return a < {w.number(1)} ? x + x * p : {w.with_sign_of('large', 'x')};",
    ]
    return w.define("erf", "x", body)


def _gelu(unit: Unit, dtype: str, lanes: int) -> str:
    """`x` times the normal distribution; the lower tail is not computed as a difference."""
    w = Writer(unit, dtype, lanes)
    body = [
        f"const {w.value} y = x * {w.number(0.7071067811865476)};",
        f"const {w.value} a = {w.use('abs')}(y);",
        f"const {w.value} z = y * y;",
        *w.polynomial("erf", "p", "z"),
        f"const {w.value} near = {w.number(0.5)} + {w.number(0.5)} * (y + y * p);",
        f"const {w.value} tail = {w.number(0.5)} * {w.use('erfc_tail')}(a);",
        f"const {w.value} far = y < {w.number(0)} ? tail : {w.number(1)} - tail;",
        f"return x * (a < {w.number(1)} ? near : far);",
    ]
    return w.define("gelu", "x", body)


def wave(name: str, quarters: int) -> Template:
    """The template of sin (phase 0) or cos (phase of one quarter turn)."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        w = Writer(unit, dtype, lanes)
        rounder = w.number(w.precision.rounder)
        sign = types.BYTES[dtype] * 8 - 2
        first, second, third, last = (f"n * {w.number(part)}" for part in w.precision.half_pi)
        ahead = f" + {quarters}" if quarters else ""
        signed = f"{w.bits('wave')} ^ ((quarter & 2) << {sign})"
        body = [
            *_out_of_reach(w, name),
            f"const {w.value} shifted = x * {w.number(0.6366197723675814)} + {rounder};",
            f"const {w.value} n = shifted - {rounder};",
            f"const {w.integer} quarter = {w.bits('shifted')}{ahead};",
            # The first two differences are exact; the rounding error of the third is added back.
            f"const {w.value} rest = (x - {first}) - {second};",
            f"const {w.value} near = rest - {third};",
            f"const {w.value} r = near + (((rest - near) - {third}) - {last});",
            f"const {w.value} z = r * r;",
            *w.polynomial("sin", "p", "z"),
            *w.polynomial("cos", "q", "z"),
            f"const {w.value} sine = r + r * (z * p);",
            f"const {w.value} cosine = ({w.number(1)} - {w.number(0.5)} * z) + z * z * q;",
            f"const {w.value} wave = (quarter & 1) == 0 ? sine : cosine;",
            f"return {w.from_bits(signed)};",
        ]
        return w.define(name, "x", body)

    return template


def _out_of_reach(w: Writer, name: str) -> list[str]:
    """Fallback to the C library for the rare arguments too large for the reduction."""
    limit = w.number(w.precision.reducible)
    call = f"__builtin_{name}{float_suffix(w.dtype)}"
    if w.lanes == 1:
        return [f"if (!(__builtin_fabs{float_suffix(w.dtype)}(x) <= {limit})) return {call}(x);"]
    any_lane = w.unit.use("any", types.integer_as_wide(w.dtype), w.lanes)
    each = f"for (int lane = 0; lane < {w.lanes}; ++lane) x[lane] = {call}(x[lane]);"
    return [
        f"if (__builtin_expect({any_lane}(~({w.use('abs')}(x) <= {limit})), false)) {{",
        f"  {each}",
        "  return x;",
        "}",
    ]


def _any(unit: Unit, dtype: str, lanes: int) -> str:
    """Whether some lane of a mask is true."""
    vector, reduce = unit.type(dtype, lanes), unit.use("reduce_or", dtype, lanes)
    return f"{INLINE}bool any_{vector}({vector} mask) {{\n  return {reduce}(mask) != 0;\n}}"


def _pow(unit: Unit, dtype: str, lanes: int) -> str:
    if types.is_float(dtype):
        return lanewise("pow", "pow", "x y")(unit, dtype, lanes)
    if lanes > 1:
        scalar = unit.use("pow", dtype, 1)
        each = f"for (int lane = 0; lane < {lanes}; ++lane) x[lane] = {scalar}(x[lane], y[lane]);"
        return define(unit, "pow", dtype, lanes, "x y", [each, "return x;"])
    element = types.ELEMENTS[dtype]
    negative = "if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;"
    loop = f"for (; y > 0; y >>= 1, x = ({element})(x * x)) if (y & 1) result = ({element})(result * x);"
    return define(
        unit, "pow", dtype, lanes, "x y", [negative, f"{element} result = 1;", loop, "return result;"]
    )


# Too rare for separate polynomials: the C library, lane by lane.
LIBRARY: Final = ("cbrt", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")

TEMPLATES: Final[dict[str, Template]] = {
    "exp": _exp,
    "tanh": _tanh,
    "log": _log,
    "log10": _log10,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "erfc_tail": _erfc_tail,
    "erf": _erf,
    "gelu": _gelu,
    "sin": wave("sin", 0),
    "cos": wave("cos", 1),
    "any": _any,
    "pow": _pow,
    "atan2": lanewise("atan2", "atan2", "x y"),
    **{name: lanewise(name, name, "x") for name in LIBRARY},
}
