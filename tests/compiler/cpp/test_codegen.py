"""C++ of every node of loop IR against the interpreter, for every width of vectors."""

import numpy as np
import pytest
import torch

from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.loops.nodes import (
    Allocate,
    AllocateOutput,
    Broadcast,
    Comment,
    Convert,
    Declare,
    Fill,
    Gather,
    Horizontal,
    If,
    Lanes,
    Op,
    Prefetch,
    Return,
    Scatter,
    Set,
    Store,
    Transpose,
    Type,
    While,
)
from tests.compiler.cpp.running import compare, run_compiled
from tests.compiler.loops.build import F32, INT, add, block, kernel, lanes_for, lit, load, loop, mul, op, var

WIDTHS = (64, 32, 16, 0)
SIZES = {"float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
ROUNDINGS = {"round": 1, "floor": 1, "ceil": 1, "trunc": 1}
FLOAT_OPS = {"relu": 1, "abs": 1, "neg": 1, "square": 1, "reciprocal": 1, "sqrt": 1, **ROUNDINGS}
INTEGER_OPS = {"relu": 1, "abs": 1, "neg": 1, "square": 1, **ROUNDINGS}
BINARY_OPS = {"add": 2, "sub": 2, "mul": 2, "min": 2, "max": 2, "fma": 3}
FLOAT_BINARY_OPS = {"div": 2, "mod": 2}
NAN_DIFFERS = {"sign": 1, "heaviside": 2}
INTEGER_BINARY_OPS = {"mod": 2, "floordiv": 2}
P = var("p")
N = var("n")


@pytest.fixture
def random():
    return np.random.default_rng(7)


def values(random, dtype, count):
    if dtype.startswith("float"):
        result = random.normal(size=count).astype(dtype)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], dtype)
        result[: len(special)] = special[:count]
        return result
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    return random.integers(-11, 12, count).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", SIZES)
def test_arithmetic(dtype, width, random):
    is_float = dtype.startswith("float")
    ops = {**BINARY_OPS, **(FLOAT_OPS | FLOAT_BINARY_OPS if is_float else INTEGER_OPS | INTEGER_BINARY_OPS)}
    type = Type(dtype, lanes_for(dtype, width))
    args = tuple(load(name, P, type) for name in ("A", "B", "C"))
    body = [Store(f"Y_{name}", P, Op(name, args[:arity], type)) for name, arity in ops.items()]
    # The C++ follows torch where numpy, and so the interpreter, gives NaN: see test_nan.
    finite = load("D", P, type)
    body += [
        Store(f"Y_{name}", P, Op(name, (finite, args[1])[:arity], type))
        for name, arity in NAN_DIFFERS.items()
    ]
    ops |= NAN_DIFFERS
    outputs = " ".join(f">Y_{name}:{dtype}" for name in ops)
    function = kernel(
        "n",
        f"A:{dtype} B:{dtype} C:{dtype} D:{dtype} {outputs}",
        loop("p", lit(0), N, *body, step=type.lanes),
    )
    arrays = {name: values(random, dtype, 64) for name in ("A", "B", "C")}
    arrays["B"] = random.permutation(arrays["B"])
    if not is_float:
        arrays["B"][arrays["B"] == 0] = 3
    arrays["D"] = np.nan_to_num(arrays["A"])
    arrays |= {f"Y_{name}": np.zeros(64, dtype) for name in ops}
    if is_float:
        # A contracted product may differ in its last place, a sum of it in many where both cancel.
        with np.errstate(invalid="ignore"):
            arrays["C"] = np.copysign(arrays["C"], arrays["A"] * arrays["B"])
    compare(function, {"n": 64}, arrays, ulps=2)


@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_nan(lanes):
    """NaN propagates as in torch."""
    type = Type("float32", lanes)
    functions = {"sign": torch.sign, "relu": torch.relu, "abs": torch.abs, "square": torch.square}
    binary = {
        "min": torch.minimum,
        "max": torch.maximum,
        "heaviside": torch.heaviside,
        "mod": torch.remainder,
    }
    a, b = load("A", P, type), load("B", P, type)
    body = [Store(f"Y_{name}", P, Op(name, (a,), type)) for name in functions]
    body += [Store(f"Y_{name}", P, Op(name, (a, b), type)) for name in binary]
    outputs = " ".join(f">Y_{name}:float32" for name in functions | binary)
    function = kernel("n", f"A:float32 B:float32 {outputs}", loop("p", lit(0), N, *body, step=lanes))
    nan, inf = np.nan, np.inf
    arrays = {"A": np.array([nan, nan, nan, 1, -1, nan, inf, 2] * 2, np.float32)}
    arrays["B"] = np.array([nan, 1, -1, nan, nan, inf, nan, 3] * 2, np.float32)
    arrays |= {f"Y_{name}": np.zeros(16, np.float32) for name in functions | binary}
    assert run_compiled(function, {"n": 16}, arrays).status == 0
    x, y = torch.from_numpy(arrays["A"]), torch.from_numpy(arrays["B"])
    wanted = {name: f(x) for name, f in functions.items()} | {name: f(x, y) for name, f in binary.items()}
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(arrays[f"Y_{name}"], tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("width", WIDTHS)
def test_comparisons_and_masks(width, random):
    """Masks of values of 4 and 8 bytes meet each other and memory of bool."""
    lanes = max(1, width // 4)
    single, double, mask = Type("float32", lanes), Type("float64", lanes), Type("bool", lanes)
    a, b, d, c = (
        load(name, P, type) for name, type in zip("ABDC", (single, single, double, mask), strict=True)
    )
    small = op("lt", a, b)
    large = op("ge", d, lit(0.25, double))
    both = Op("logical_or", (Op("logical_and", (small, large), mask), c), mask)
    body = [
        Declare(var("m", mask), Op("logical_xor", (both, Op("logical_not", (c,), mask)), mask), True),
        *(Store(f"Y_{name}", P, op(name, a, b)) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
        Store("M", P, var("m", mask)),
        Store("W", P, Op("where", (var("m", mask), d, lit(-1.0, double)), double)),
        Set(var("m", mask), Broadcast(load("C", P, Type("bool")), mask)),
        Store("V", P, Op("where", (var("m", mask), a, Broadcast(load("A", lit(9), F32), single)), single)),
        Store("K", P, Convert(Op("where", (small, lit(True, mask), c), mask), Type("int64", lanes))),
        Store("L", P, Convert(a, mask)),
    ]
    names = " ".join(f">Y_{name}:bool" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
    buffers = f"A:float32 B:float32 D:float64 C:bool {names} >M:bool >W:float64 >V:float32 >K:int64 >L:bool"
    function = kernel("n", buffers, loop("p", lit(0), N, *body, step=lanes))
    arrays = {"A": values(random, "float32", 64), "B": values(random, "float32", 64)}
    arrays |= {"D": values(random, "float64", 64), "C": values(random, "bool", 64)}
    arrays |= {b.name: np.zeros(64, b.dtype) for b in function.buffers if b.output}
    compare(function, {"n": 64}, arrays)


@pytest.mark.parametrize("flags", [("-O1",), ("-O1", "-march=x86-64")], ids=["native", "plain"])
@pytest.mark.parametrize("width", [*WIDTHS, 128])
def test_parts_of_vectors(width, flags, random):
    """Lanes from `count` on are neither read nor written, for every count."""
    body = [Declare(var("count"), load("counts", P, INT))]
    for dtype in SIZES:
        type = Type(dtype, lanes_for(dtype, width))
        at = mul(P, lit(type.lanes))
        body.append(Store(f"Y_{dtype}", at, load(dtype, at, type, var("count"))))
        body.append(Store(f"Z_{dtype}", at, load(dtype, at, type), var("count")))
    names = " ".join(f"{dtype}:{dtype} >Y_{dtype}:{dtype} >Z_{dtype}:{dtype}" for dtype in SIZES)
    function = kernel("n", f"counts:int64 {names}", loop("p", lit(0), N, *body))
    most = max(1, width)
    counts = np.array([*range(min(most, 20) + 3), *range(max(0, most - 2), most + 2)])
    arrays = {"counts": counts}
    for dtype in SIZES:
        arrays[dtype] = values(random, dtype, lanes_for(dtype, width) * len(counts))
        arrays |= {f"{name}_{dtype}": np.full(arrays[dtype].size, 7, dtype) for name in "YZ"}
    compare(function, {"n": len(counts)}, arrays, flags=flags)


@pytest.mark.skipif(not target.has("avx512f"), reason="this CPU has no AVX-512")
def test_parts_of_vectors_by_mask_registers(random):
    test_parts_of_vectors(64, ("-march=x86-64-v4",), random)


def test_masked_accesses_compile_for_avx512(tmp_path):
    """On a CPU without AVX-512 the text is at least accepted by the compiler."""
    from sparsify.compiler.cpp.toolchain import build
    from sparsify.options import Options

    options = Options(compiler_flags=("-march=x86-64-v4", "-Werror"))
    types = [Type(d, lanes_for(d, w)) for w in (64, 32, 16) for d in ("float32", "float64", "int32", "int64")]
    body = [Store(f"Y_{type.dtype}", P, load(f"A_{type.dtype}", P, type, N), N) for type in types]
    buffers = " ".join(f"A_{d}:{d} >Y_{d}:{d}" for d in ("float32", "float64", "int32", "int64"))
    text = emit(kernel("n p", buffers, *body))
    assert text.count("defined(__AVX512") == 2 * len(types)
    assert build.build(text, tmp_path, build.find_compiler(options), options).is_file()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_gather_and_scatter(dtype, width, random):
    type = Type(dtype, lanes_for(dtype, width))
    lanes = type.lanes
    narrow = load("I", P, Type("int32", lanes))
    wide = Convert(narrow, Type("int64", lanes))
    rest = op("min", lit(lanes), op("sub", N, P))
    full = [Store("Y", P, Gather("A", wide, type)), Scatter("Z", wide, load("A", P, type))]
    part = [
        Declare(var("rest"), rest),
        Declare(var("i", Type("int32", lanes)), load("I", P, Type("int32", lanes), var("rest"))),
        Store("Y", P, Gather("A", var("i", Type("int32", lanes)), type, var("rest")), var("rest")),
        Scatter("Z", var("i", Type("int32", lanes)), load("A", P, type, var("rest")), var("rest")),
    ]
    whole = mul(op("floordiv", N, lit(lanes)), lit(lanes))
    function = kernel(
        "n",
        f"A:{dtype} I:int32 >Y:{dtype} >Z:{dtype}",
        loop("p", lit(0), whole, *full, step=lanes),
        loop("p", whole, N, *part, step=lanes),
    )
    for count in (64, 61, 5, 0):
        arrays = {
            "A": values(random, dtype, max(count, 8)),
            "I": random.integers(0, max(count, 1), 64, np.int32),
        }
        arrays |= {"Y": np.zeros(64, dtype), "Z": np.zeros(64, dtype)}
        compare(function, {"n": count}, arrays)


@pytest.mark.parametrize("width", [32, 0])
def test_gather_by_indices_in_memory(width, random):
    """Gathers read indices of an operand in place; indices in a buffer written meanwhile are read before the write."""
    type, indices = Type("float32", lanes_for("float32", width)), Type("int32", lanes_for("int32", width))
    body = [
        Declare(var("i", indices), load("I", P, indices)),
        Declare(var("j", indices), load("J", P, indices)),
        Declare(var("left"), op("min", lit(3), lit(type.lanes))),
        Declare(var("k", indices), load("I", P, indices, var("left"))),
        Store("J", P, var("i", indices)),
        Store("Y", P, Gather("A", var("i", indices), type)),
        Store("Z", P, Gather("A", var("j", indices), type)),
        Store("W", P, Gather("A", var("k", indices), type, var("left"))),
    ]
    function = kernel(
        "n",
        "A:float32 I:int32 >J:int32 >W:float32 >Y:float32 >Z:float32",
        loop("p", lit(0), N, *body, step=type.lanes),
    )
    arrays = {"A": values(random, "float32", 64), "I": random.integers(0, 64, 64, np.int32)}
    arrays |= {"J": random.integers(0, 64, 64, np.int32)} | {n: np.zeros(64, "float32") for n in "WYZ"}
    compare(function, {"n": 64}, arrays)
    assert emit(function).count("gather_float32x8(A, &I[p])") == (1 if width else 0)


@pytest.mark.parametrize("width", [*WIDTHS, 128])
def test_horizontal(width, random):
    """Counts 0 to lanes; 0 gives the identity."""
    names = [
        (name, dtype)
        for dtype in ("float32", "float64", "int32", "int64")
        for name in ("add", "mul", "min", "max")
    ]
    count = var("count")
    body = [Declare(count, P)]
    for name, dtype in names:
        type = Type(dtype, lanes_for(dtype, width))
        body.append(
            Store(f"{name}_{dtype}_Y", P, Horizontal(name, load(dtype, lit(0), type), Type(dtype), count))
        )
        whole = Horizontal(name, load(dtype, lit(0), type), Type(dtype), lit(type.lanes))
        body.append(Store(f"{name}_{dtype}_Z", P, whole))
    inputs = " ".join(f"{dtype}:{dtype}" for dtype in ("float32", "float64", "int32", "int64"))
    outputs = " ".join(f">{name}_{dtype}_{y}:{dtype}" for name, dtype in names for y in "YZ")
    function = kernel("n", f"{inputs} {outputs}", loop("p", lit(0), N, *body))
    arrays = {
        dtype: random.integers(1, 4, 64).astype(dtype) for dtype in ("float32", "float64", "int32", "int64")
    }
    arrays |= {b.name: np.zeros(34, b.dtype) for b in function.buffers if b.output}
    compare(function, {"n": 34}, arrays)


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", n) for n in (1, 2, 4, 8, 16)] + [("float64", 4)])
def test_transpose(dtype, lanes, random):
    type = Type(dtype, lanes)
    rows = tuple(load("A", lit(lanes * row), type) for row in range(lanes))
    outputs = tuple(var(f"y_{row}", type) for row in range(lanes))
    stores = [Store("Y", lit(lanes * row), output) for row, output in enumerate(outputs)]
    function = kernel("", f"A:{dtype} >Y:{dtype}", Transpose(outputs, rows), *stores)
    tile = random.normal(size=lanes * lanes).astype(dtype)
    left = compare(function, {}, {"A": tile, "Y": np.zeros_like(tile)})
    np.testing.assert_array_equal(left["Y"].reshape(lanes, lanes), tile.reshape(lanes, lanes).T)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_conversions(lanes, random):
    """Conversions between all pairs of dtypes, of values representable in all dtypes."""
    dtypes = (*SIZES, "bool")
    body = [
        Store(f"{a}_to_{b}", lit(0), Convert(load(a, lit(0), Type(a, lanes)), Type(b, lanes)))
        for a in dtypes
        for b in dtypes
    ]
    inputs = " ".join(f"{a}:{a}" for a in dtypes)
    function = kernel("", f"{inputs} {' '.join(f'>{a}_to_{b}:{b}' for a in dtypes for b in dtypes)}", *body)
    arrays = {a: random.integers(-9, 9, 8).astype(a) for a in dtypes}
    arrays |= {f"{a}_to_{b}": np.zeros(8, b) for a in dtypes for b in dtypes}
    compare(function, {}, arrays)


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_and_broadcast(width):
    types = [Type(dtype, lanes_for(dtype, width)) for dtype in SIZES]
    body = []
    for type in types:
        start = load(type.dtype, lit(1), Type(type.dtype))
        product = Op(
            "mul", (Broadcast(start, type), Broadcast(load(type.dtype, lit(2), Type(type.dtype)), type)), type
        )
        value = (
            add(Lanes(start, type), lit(2, type)) if not type.dtype.startswith("float") else lit(-0.5, type)
        )
        body.append(Store(f"Y_{type.dtype}", lit(0), op("sub", product, value)))
    names = " ".join(f"{dtype}:{dtype} >Y_{dtype}:{dtype}" for dtype in SIZES)
    arrays = {dtype: np.array([9, 3, 5], dtype) for dtype in SIZES}
    arrays |= {f"Y_{dtype}": np.zeros(64, dtype) for dtype in SIZES}
    compare(kernel("", names, *body), {}, arrays)


def test_loops_branches_and_awkward_names():
    """Variables called like keywords and like generated names; ranges evaluated once."""
    names = ["int", "float32x8", "exp_float32", "sizes", "double", "p_end", "min_int64", "thread"]
    body = [Declare(var(name), lit(number + 1), True) for number, name in enumerate(names)]
    total: Op = add(var(names[0]), var(names[1]))
    for name in names[2:]:
        total = add(total, op("min", var(name), lit(4)))
    body += [
        Comment("forall p\nin steps"),
        loop(
            "p",
            lit(0),
            var("int"),
            # The end was read before.
            Set(var("int"), add(var("int"), lit(1))),
        ),
        While(op("lt", var("double"), lit(40)), Set(var("double"), mul(var("double"), lit(2)))),
        If(op("eq", var("double"), lit(40)), Store("new", lit(0), total), Store("new", lit(0), lit(-1))),
        If(
            op("gt", var("double"), lit(90)),
            Store("new", lit(1), lit(1)),
            If(op("gt", var("double"), lit(39)), Store("new", lit(1), lit(2)), Store("new", lit(1), lit(3))),
        ),
        Prefetch("new", lit(0)),
        Store("new", lit(2), op("floordiv", op("sub", lit(0), lit(7)), lit(4))),
        Store("new", lit(3), op("mod", op("sub", lit(0), lit(7)), lit(4))),
        Store("new", lit(4), op("floordiv", op("sub", lit(0), lit(7)), op("sub", lit(1), lit(4)))),
        Store("new", lit(5), op("mod", lit(7), op("sub", lit(1), lit(4)))),
    ]
    left = compare(kernel("", ">new:int64", *body), {}, {"new": np.zeros(6, np.int64)})
    assert left["new"].tolist() == [2 + 2 + 3 + 4 * 5, 2, -2, 1, 2, -2]


def test_operands_decide_lazily():
    """`p < n and A[p] > 0` reads nothing beyond the array; `where` evaluates only the chosen side."""
    inside = op("lt", P, N)
    positive = op("gt", load("A", P, F32), lit(0.0, F32))
    function = kernel(
        "n",
        "A:float32 >Y:int64 >Z:float32",
        Declare(P, lit(0), True),
        While(Op("logical_and", (inside, positive), Type("bool")), Set(P, add(P, lit(1)))),
        Store("Y", lit(0), P),
        Store("Z", lit(0), Op("where", (inside, load("A", P, F32), lit(-1.0, F32)), F32)),
    )
    for array in ([1, 2, 3], [1, -2, 3]):
        arrays = {"A": np.array(array, np.float32), "Y": np.zeros(1, np.int64), "Z": np.zeros(1, np.float32)}
        compare(function, {"n": 3}, arrays)


@pytest.mark.parametrize("count", [lit(100), lit(100_000), N], ids=["stack", "heap", "variable"])
def test_scratch(count, random):
    function = kernel(
        "n",
        "A:float32 >Y:float32",
        loop(
            "i",
            lit(0),
            lit(3),
            Allocate("w", "float32", count, 2.0),
            Fill("w", lit(1), lit(3), load("A", var("i"), F32)),
            loop("p", lit(0), lit(100), Store("Y", P, add(load("w", P, F32), load("Y", P, F32)))),
        ),
    )
    arrays = {"A": values(random, "float32", 8)[5:].copy(), "Y": np.ones(100, np.float32)}
    compare(function, {"n": 100}, arrays)


def test_no_memory():
    scratch = kernel(
        "n", ">Y:float32", Allocate("w", "float32", N), Store("Y", lit(0), load("w", lit(0), F32))
    )
    arrays = {"Y": np.zeros(1, np.float32)}
    assert run_compiled(scratch, {"n": 2**58}, arrays).status == 1
    grown = kernel("n", "*Y:float32", AllocateOutput("Y", "float32", N), Store("Y", lit(0), lit(1.0, F32)))
    assert run_compiled(grown, {"n": 4}, {}, memory=False).status == 1
    assert run_compiled(grown, {"n": 4}, {}).grown["Y"].tolist() == [1, 0, 0, 0]


def test_status_and_empty_output():
    function = kernel(
        "n",
        "*Y:float32",
        AllocateOutput("Y", "float32", N),
        If(op("gt", N, lit(2)), Return(2)),
        loop("p", lit(0), N, Store("Y", P, lit(3.0, F32))),
    )
    assert compare(function, {"n": 2}, {})["Y"].tolist() == [3, 3]
    assert run_compiled(function, {"n": 0}, {}).status == 0
    assert run_compiled(function, {"n": 3}, {}).status == 2


def test_text_is_minimal():
    """A small kernel has a short text: no unused sizes, buffers, types or helpers."""
    text = emit(kernel("n m", "A:float32 B:float32 >Y:float32", Store("Y", lit(0), load("A", var("m"), F32))))
    assert "n" not in [line.split()[2] for line in text.splitlines() if "= sizes[" in line]
    assert "buffers[1]" not in text and "uint" not in text and "omp" not in text and "inline" not in text


def test_blocks_flatten():
    inner = block(Store("Y", lit(0), lit(1.0, F32)), Store("Y", lit(1), lit(2.0, F32)))
    once, twice = kernel("", ">Y:float32", inner), kernel("", ">Y:float32", block(inner))
    assert emit(once) == emit(twice)
