"""Public functions with wrong arguments of every kind: an error of this package with a short traceback, or a result."""

import random
import traceback
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch

import sparsify
from sparsify import options, patterns, recipe
from sparsify.errors import SparsifyError

CALLS = 700
MOST_FRAMES = 15
pytestmark = pytest.mark.filterwarnings("ignore")

EYE = torch.eye(3)
CSR = sparsify.tensor(EYE, "csr")
CUBE = sparsify.tensor(torch.ones(2, 2, 2), "csf")


def tensors():
    """Tensors of every kind that torch has."""
    yield from (torch.tensor(1.0), torch.ones(0), torch.ones(1, 2, 3, 4, 5), torch.ones(1, 3).expand(3, 3))
    dtypes = (torch.complex32, torch.float8_e4m3fn, torch.uint16, torch.bool, torch.int8)
    yield from (EYE.to(dtype) for dtype in dtypes)
    yield from (EYE.to("meta"), EYE.to_mkldnn(), torch.ones(6, 6)[::2, ::2])
    yield torch.ones(3, 3, dtype=torch.complex64).imag
    yield torch.quantize_per_tensor(EYE, 0.1, 0, torch.qint8)
    yield torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield torch.nn.parameter.UninitializedParameter()
    yield from (EYE.to_sparse(), EYE.to_sparse_csr(), torch.eye(4).to_sparse_bsr((2, 2)))
    yield torch.sparse_coo_tensor(torch.tensor([[0, 5]]), torch.ones(2), (9,))
    yield from (CSR, CUBE, CSR.with_fill(1.0), CSR.to(torch.complex64), torch.full((3, 3), float("nan")))


def arrays():
    """Arrays of numpy and scipy."""
    eye = np.eye(3)
    yield from (
        eye[::-1],
        eye.astype(">f8"),
        eye.astype(object),
        np.array([["a"]]),
        np.broadcast_to(1.0, (3, 3)),
    )
    yield from (np.eye(3, dtype=np.longdouble), np.ma.masked_array(eye), np.array([1], dtype="datetime64[s]"))
    yield from (scipy.sparse.lil_matrix((3, 3)), scipy.sparse.random(3, 3, 0.5, "csc"))
    yield scipy.sparse.coo_array((np.ones(2), ([0, 0], [1, 1])), shape=(3, 3))


class Hostile:
    """Raises ZeroDivisionError for every attribute."""

    def __getattr__(self, name):
        return 1 / 0


JUNK = [
    *(None, 0, -1, 3.5, float("nan"), float("inf"), 10**30, -(10**30), 1j, True, Fraction(1, 3), Hostile()),
    *(
        "",
        "ü",
        "\0",
        "csr",
        "a" * 5000,
        "(" * 10_000,
        b"x",
        [],
        [1],
        ["a"],
        (),
        (3, 3),
        (-1, 2),
        {},
        {1},
        {"a": 1},
    ),
    *(
        (10**10, 10**10),
        object(),
        int,
        ...,
        slice(1),
        range(3),
        [[1], [1, 2]],
        torch.float32,
        torch.sparse_csr,
    ),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of prototypes of torch
    TENSORS, ARRAYS = list(tensors()), list(arrays())
ANYTHING = [*JUNK, *TENSORS, *ARRAYS]
TEXTS = [
    *(
        "y[i] = A[i,j] * x[j]",
        "y[i] = 1/0",
        "y[i] = 1e400 * x[i]",
        "y[i] = 0 ** -1 * x[i]",
        "y[i] = mod(3, 0) * x[i]",
    ),
    *("y[i] = 10 ** 10 ** 10 * x[i]", "y[i] = " + "9" * 10_000 + "*x[i]", "y[i] = x[i/0]", "y[i] = x[i%0]"),
    "y[i] = " + "(" * 10_000 + "x[i]" + ")" * 10_000,
    *("y[i] = " + "-" * 10_000 + "x[i]", "y[i] = " + "exp(" * 3000 + "x[i]" + ")" * 3000),
    *("y[i] = " + "+".join(["x[i]"] * 2000), "y[i] = x[" + "i," * 60 + "]", "y[" + "i" * 3000 + "] = x[i]"),
    *(
        "int[i] = x[i]",
        "y[for] = x[for]",
        "return[i] = x[i]",
        "nan[i] = x[i]",
        "exp[i] = x[i]",
        "sum[i] = x[i]",
    ),
    *(
        "y[i] = foo(x[i])",
        "y[i] = x[i",
        "= x[i]",
        "y[i] =",
        "y[i] foo= x[i]",
        "y[i] = x[i] $ 2",
        "y[ï] = é[ï]",
    ),
    *(
        "y[i] = y[i]",
        "y[i,i] = x[i]",
        "y[i] = A[i]",
        "y[0] = x[i]",
        "y[i] = x[99999999999999999999]",
        "y = stored(x)",
    ),
    *("y[i] = x[i] < 1 < 2", "y[i] = lambda: 0", "\ud800", "", "# c", "y[i] = extent(q)", "y[i] = sum(,)"),
]
SUBSCRIPTS = [
    *(
        "ij,jk->ik",
        "ij->ji",
        "",
        "->",
        ",",
        "......",
        "i->ii",
        "ij,jk->iq",
        "ij>ji",
        "ïj,jk->ik",
        "\0->",
        "🙂->",
    ),
    *("i" * 60 + "->i", ",".join(["ij"] * 200) + "->ij", "(ij)->ji", "ij,jk->ik->k", "..ij->ij"),
]
FORMATS = [
    *(
        "csr",
        "coo",
        "bcsr(0,2)",
        "bcsr(a,b)",
        "bcsr(99999999999999999999,2)",
        "i/0: dense",
        "grouped(2)",
        "foo",
        "",
    ),
    *(
        "dense, compressed(crd=float)",
        "singleton",
        "((",
        "i: dense, i: dense",
        "dense, compressed(" * 50,
        "coo(3)",
    ),
]
SCHEDULES = [
    *(
        "order j, i",
        "order q",
        "split i io ii 0",
        "split i io ii 99999999999999999999",
        "vector q",
        "fuse i j h",
    ),
    *(
        "foo",
        ";;",
        "order i," * 1000,
        "precompute w at i in foo",
        "merge j",
        "unroll i 99999",
        "parallel i balanced Q",
    ),
]
RULES = [
    *(
        {"targets": ["("]},
        {"targets": ["*"], "format": "foo"},
        {"targets": 3},
        {"format": None},
        {"mask": {"kind": "x"}},
    ),
    *(
        {"targets": ["param:weight"], "format": "csr"},
        {"targets": ["*"], "prune": {"method": "magnitude", "sparsity": 2}},
    ),
]
RECIPES = [
    *({"schema": 1}, {1: 2}, "a: [", "schema: 1\nsparsify: 3", "no-such", "x" * 5000),
    *({"schema": 1, "name": "t", "sparsify": [rule]} for rule in RULES),
]


def maybe(generator, **pools):
    """Some of the keyword arguments."""
    return {name: generator.choice(pool) for name, pool in pools.items() if generator.random() < 0.3}


def call_of(generator):
    """A public function with arguments of which some are wrong."""
    pick = generator.choice
    some = [pick(pick([TENSORS, TENSORS, ARRAYS, JUNK])) for _ in range(pick([1, 2, 2, 3]))]
    listed = (
        pick(
            [[[0, 1], [1, 0]], [[0, 5], [1, 0]], [[-1, 0], [0, 0]], [[float("nan"), 0], [0, 1]], pick(JUNK)]
        ),
    )
    listed += (pick([[1.0, 2.0], pick(ANYTHING)]), pick([(3, 3), (3,), (2**40, 2**40), pick(JUNK)]))
    kind = maybe(generator, format=[*FORMATS, *JUNK], schedule=[*SCHEDULES, *JUNK])
    named = maybe(generator, A=[CSR, pick(ANYTHING)], x=[torch.ones(3), pick(ANYTHING)], y_=[EYE])
    pattern = pick(
        ["bigbird", "longformer", "sliding_window", "strided", "fixed", "causal", "from_file", "from_tensor"]
    )
    return pick(
        [
            (sparsify.einsum, (pick([*SUBSCRIPTS, pick(JUNK)]), *some), kind),
            (sparsify.einsum, (pick(SUBSCRIPTS), CSR, EYE), kind),
            (sparsify.evaluate, (pick([*TEXTS, pick(JUNK)]),), named | kind),
            (sparsify.evaluate, (TEXTS[0],), named | maybe(generator, sizes=JUNK, outputs=[*JUNK, [["y"]]])),
            (sparsify.explain, (pick([*TEXTS, *SUBSCRIPTS, *ANYTHING]), *some), named),
            (
                sparsify.tensor,
                (pick(ANYTHING),),
                maybe(generator, format=FORMATS, fill=JUNK, duplicates=JUNK),
            ),
            (sparsify.tensor, (listed,), maybe(generator, format=[*FORMATS, *JUNK], fill=JUNK)),
            (
                sparsify.Format,
                (pick([*FORMATS, *JUNK]),),
                maybe(generator, ordering=JUNK, rank=[1, 2, *JUNK]),
            ),
            (sparsify.Schedule.parse, (pick([*SCHEDULES, *JUNK]),), {}),
            (sparsify.Pattern, (CSR.format, *(pick([(3, 3), pick(JUNK)]) for _ in range(3))), {}),
            (sparsify.SparseTensor, (pick([CSR.pattern, *JUNK]), pick(ANYTHING)), {}),
            (sparsify.apply, (pick([torch.nn.Linear(3, 3), *JUNK[:3]]), pick(RECIPES)), {}),
            (recipe.load, (pick([*RECIPES, *JUNK]),), {}),
            (recipe.loads, (pick([*RECIPES, *JUNK]),), {}),
            (sparsify.load, (pick(JUNK), None), {}),
            (sparsify.save, (pick(JUNK), "never-made"), {}),
            (
                sparsify.register_function,
                (pick(JUNK), pick(["x/0", "f(x)", "A[i]", *JUNK])),
                maybe(generator, args=JUNK),
            ),
            (sparsify.register_monoid, (pick(JUNK), pick(["x+y", "x", *JUNK]), pick(JUNK)), {}),
            (sparsify.register_level, (pick(JUNK),), {}),
            (
                getattr(patterns, pattern),
                (pick(JUNK),),
                maybe(generator, block=JUNK, stride=JUNK, window=JUNK),
            ),
        ]
    )


def outcome(function, args, kwargs):
    """What the call raised, `None` when it returned."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
    return None


def problem(error):
    """What is wrong with an error, "" when nothing is."""
    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {str(error)[:200]}, raised in {frames[-1].filename}:{frames[-1].lineno}"
    if not isinstance(error, SparsifyError):
        is_of_binding = isinstance(error, TypeError) and len(frames) <= 2  # raised by the call itself
        return "" if is_of_binding else f"foreign {text}"
    if len(frames) > MOST_FRAMES:
        return f"{len(frames)} frames of {text}"
    is_chained = error.__context__ is not None and not error.__suppress_context__
    return f"another error before {text}" if is_chained else ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(3))
def test_errors_of_this_package_with_short_tracebacks(seed, tmp_path, monkeypatch):
    """No kernel is built: what is right up to there ends in the error of a compiler that refuses everything."""
    monkeypatch.chdir(tmp_path)
    generator = random.Random(seed)
    endings = {"error": 0, "result": 0}
    with options.override(compiler="/bin/false"):
        for number in range(CALLS):
            function, args, kwargs = call_of(generator)
            error = outcome(function, args, kwargs)
            endings["result" if error is None else "error"] += 1
            assert error is None or not problem(error), (
                f"{seed}, {number}: {function.__name__}: {problem(error)}"
            )
    assert endings["error"] > CALLS / 2 and endings["result"] > 0


def test_a_registered_name_of_no_text_leaves_nothing_behind():
    before = dict(sparsify.compiler.einsum.functions.FUNCTIONS)
    with pytest.raises(SparsifyError, match="names and bodies are texts"):
        sparsify.register_function("half", None)
    assert before == sparsify.compiler.einsum.functions.FUNCTIONS


def test_the_place_of_the_error_stays_in_the_traceback():
    with pytest.raises(SparsifyError) as raised:
        sparsify.evaluate("y[i] = " + "(" * 200 + "x[i]" + ")" * 200, x=torch.ones(3))
    frames = traceback.extract_tb(raised.tb)
    assert frames[-1].name == "comparison" and len(frames) < MOST_FRAMES
