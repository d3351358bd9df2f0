"""The polynomial coefficients of `sparsify/compiler/cpp/helpers/elementary.py`.

Each polynomial is the interpolant at Chebyshev nodes of the function divided by its leading behaviour, computed with
60 digits; the printed error is the largest relative error over the interval, before coefficients are rounded.

    python experiments/polynomials.py
"""

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60

Real = Callable[[mp.mpf], mp.mpf]


def interpolate(f: Real, low: float, high: float, degree: int) -> list[mp.mpf]:
    """Coefficients, constant first, of the polynomial through `f` at the Chebyshev nodes of an interval."""
    low, high = mp.mpf(low), mp.mpf(high)
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * n + 1) / (2 * degree + 2))
        for n in range(degree + 1)
    ]
    rows = mp.matrix([[node**power for power in range(degree + 1)] for node in nodes])
    return list(mp.lu_solve(rows, mp.matrix([f(node) for node in nodes])))


def largest_error(f: Real, coefficients: list[mp.mpf], low: float, high: float) -> mp.mpf:
    """Largest relative error at 400 points of the interval."""
    points = mp.linspace(mp.mpf(low), mp.mpf(high), 401)[1:]
    return max(abs(mp.polyval(coefficients[::-1], point) / f(point) - 1) for point in points)


def expm1_tail(r: mp.mpf) -> mp.mpf:
    """`(exp(r) - 1 - r) / r**2`."""
    return mp.mpf(1) / 2 if abs(r) < 1e-30 else (mp.expm1(r) - r) / r**2


def atanh_tail(z: mp.mpf) -> mp.mpf:
    """`(log(1 + f) - 2 s) / (s z)` with `s = f / (2 + f)` and `z = s * s`."""
    s = mp.sqrt(z)
    return mp.mpf(2) / 3 if abs(z) < 1e-30 else (2 * mp.atanh(s) - 2 * s) / (s * z)


def erf_ratio(z: mp.mpf) -> mp.mpf:
    """`erf(x) / x - 1` with `z = x * x`."""
    x = mp.sqrt(z)
    return (2 / mp.sqrt(mp.pi) if abs(z) < 1e-30 else mp.erf(x) / x) - 1


def scaled_erfc(t: mp.mpf) -> mp.mpf:
    """`exp(x * x) * erfc(x) * (1 + 2 x)` with `t = (x - 3) / (x + 3)`."""
    x = 3 * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)


def sin_tail(z: mp.mpf) -> mp.mpf:
    """`(sin(x) - x) / x**3` with `z = x * x`."""
    x = mp.sqrt(z)
    return -mp.mpf(1) / 6 if abs(z) < 1e-30 else (mp.sin(x) - x) / x**3


def cos_tail(z: mp.mpf) -> mp.mpf:
    """`(cos(x) - 1 + z / 2) / z**2` with `z = x * x`."""
    return mp.mpf(1) / 24 if abs(z) < 1e-30 else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


QUARTER = float((mp.pi / 4) ** 2) * 1.01
FITS = {
    "expm1": (expm1_tail, -0.3467, 0.3467, {"float32": 4, "float64": 10}),
    "log": (atanh_tail, 0.0, 0.029438, {"float32": 2, "float64": 6}),
    "erf": (erf_ratio, 0.0, 1.0, {"float32": 6, "float64": 11}),
    "erfc": (scaled_erfc, -0.5, 0.81, {"float32": 8, "float64": 18}),
    "sin": (sin_tail, 0.0, QUARTER, {"float32": 2, "float64": 5}),
    "cos": (cos_tail, 0.0, QUARTER, {"float32": 2, "float64": 5}),
}


def main() -> None:
    """Prints every fit, constant first."""
    for name, (f, low, high, degrees) in FITS.items():
        for dtype, degree in degrees.items():
            coefficients = interpolate(f, low, high, degree)
            error = mp.nstr(largest_error(f, coefficients, low, high), 3)
            print(f'("{name}", "{dtype}"): (  # {error}')
            for coefficient in coefficients:
                print(f"    {float(coefficient)!r},")
            print("),")


if __name__ == "__main__":
    main()
