"""Accuracy of the elementary functions against numpy in a wider type, edges included."""

import numpy as np
import pytest
from scipy import special

from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.loops.nodes import Op, Store, Type
from tests.compiler.cpp.running import run_compiled
from tests.compiler.loops.build import kernel, lit, load, loop, var

P, N = var("p"), var("n")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "log10": np.log10,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "erf": lambda x: special.erf(x.astype(np.float64)),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * special.erfc((-x * np.sqrt(x.dtype.type(0.5))).astype(np.float64)),
    "gelu_tanh": lambda x: x * sigmoid(2 * np.sqrt(2 / np.longdouble(np.pi)) * (x + 0.044715 * x**3)),
}
PRODUCTS = ("silu", "gelu", "gelu_tanh")
LIBRARY = {
    "cbrt": np.cbrt,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}


def apply(names, dtype, lanes, x, flags):
    type = Type(dtype, lanes)
    body = [Store(f"Y_{name}", P, Op(name, (load("X", P, type),), type)) for name in names]
    outputs = " ".join(f">Y_{name}:{dtype}" for name in names)
    function = kernel("n", f"X:{dtype} {outputs}", loop("p", lit(0), N, *body, step=lanes))
    arrays = {"X": x, **{f"Y_{name}": np.zeros_like(x) for name in names}}
    assert run_compiled(function, {"n": x.size}, arrays, flags=flags).status == 0
    return {name: arrays[f"Y_{name}"] for name in names}


def samples(dtype):
    """Arguments of all magnitudes, and arguments at the boundaries of formulas."""
    random = np.random.default_rng(3)
    limits = np.finfo(dtype)
    edges = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        limits.tiny,
        limits.smallest_subnormal,
        limits.max,
        limits.min,
    ]
    edges += [
        sign * x for x in (1, 0.5, 88.72, 103.9, 104.1, 709.7, 745.1, 746, 8192, 2.0**-30) for sign in (1, -1)
    ]
    spread = np.exp(random.uniform(-86, 86, 4000)) * random.choice([-1, 1], 4000)
    parts = [
        random.uniform(-110, 110, 4000),
        random.normal(size=4000),
        random.uniform(-8000, 8000, 2000),
        spread,
    ]
    x = np.concatenate([edges, *parts]).astype(dtype)
    return np.resize(x, (x.size + 15) // 16 * 16)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "lanes", "flags"),
    [
        ("float32", 8, ()),
        ("float32", 1, ()),
        ("float32", 4, ("-march=x86-64",)),
        ("float32", 16, ("-O1",)),
        ("float64", 4, ()),
        ("float64", 1, ()),
        ("float64", 2, ("-march=x86-64",)),
        ("float64", 8, ("-O1",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_accuracy(dtype, lanes, flags):
    x = samples(dtype)
    wide = x.astype(np.float64 if dtype == "float32" else np.longdouble)
    results = apply(REFERENCES, dtype, lanes, x, flags)
    for name, actual in results.items():
        with np.errstate(all="ignore"):
            wanted = REFERENCES[name](wide)
            rounded = wanted.astype(dtype)
            # 2 ulp of float32, a little more where two roundings meet; 1e-15 relative is 4.5 ulp of float64.
            allowed = (2.5 if dtype == "float32" else 4.5) * np.spacing(np.abs(rounded)).astype(wide.dtype)
            if name in PRODUCTS:
                allowed = np.maximum(allowed, 2 * np.finfo(dtype).eps * np.abs(wide))
            error = np.abs(actual.astype(wide.dtype) - wanted)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
        worst = int(np.argmax(np.where(same, 0, np.nan_to_num(error / allowed, nan=np.inf))))
        assert np.all(same | (error <= allowed)), (
            f"{name}({x[worst]!r}) = {actual[worst]!r}, not {rounded[worst]!r}"
        )


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 8), ("float32", 1), ("float64", 4)])
def test_library_functions(dtype, lanes):
    x = np.resize(np.array([0.3, -0.9, 1.5, 0.0, np.inf, np.nan, -3.0, 1.0], dtype), 16)
    for name, actual in apply(LIBRARY, dtype, lanes, x, ("-O1",)).items():
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(actual, LIBRARY[name](x), rtol=4 * np.finfo(dtype).eps, err_msg=name)


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 8), ("float64", 1), ("int32", 8), ("int64", 1)])
def test_pow_and_atan2(dtype, lanes):
    names = ("pow", "atan2") if dtype.startswith("float") else ("pow",)
    type = Type(dtype, lanes)
    body = [Store(f"Y_{n}", P, Op(n, (load("A", P, type), load("B", P, type)), type)) for n in names]
    outputs = " ".join(f">Y_{name}:{dtype}" for name in names)
    function = kernel("n", f"A:{dtype} B:{dtype} {outputs}", loop("p", lit(0), N, *body, step=lanes))
    arrays = {"A": np.arange(-3, 5).astype(dtype), "B": np.array([0, 1, 2, 3, 4, 5, 6, 7], dtype)}
    arrays |= {f"Y_{name}": np.zeros(8, dtype) for name in names}
    assert run_compiled(function, {"n": 8}, arrays).status == 0
    np.testing.assert_allclose(arrays["Y_pow"], arrays["A"] ** arrays["B"], rtol=1e-6)
    if "Y_atan2" in arrays:
        np.testing.assert_allclose(arrays["Y_atan2"], np.arctan2(arrays["A"], arrays["B"]), rtol=1e-6)


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "gelu", "gelu_tanh", "silu"])
def test_no_library_calls(name):
    """Vectorized elementary functions never call the C library."""
    type = Type("float32", 8)
    text = emit(kernel("p", "X:float32 >Y:float32", Store("Y", P, Op(name, (load("X", P, type),), type))))
    assert "lane" not in text
    assert not {f"__builtin_{f}f" for f in ("exp", "log", "tanh", "erf")} & set(
        text.replace("(", " ").split()
    )
