"""Dense operands strided across the lanes are copied transposed, if the cost model expects it to be faster."""

import string
from collections.abc import Mapping

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.kernel import Kernel, compile_program
from sparsify.compiler.operands.program_of import program_of
from sparsify.compiler.schedule.cost.loop_order import statement_order
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.options import override

ROWS = "dense, dense, compressed"
BATCHED = "Y[b,m,n] = X[b,m,k] * W[b,k,n]"
SAMPLED = "Y[o,i] = W[o,i] * X[b,o] * Z[b,i]"
# Text, format of the sparse operand W, format of the result.
PRODUCTS = [
    (BATCHED, ROWS, "dense, dense, dense"),
    ("Y[b,m,n] = X[m,b,k] * W[b,n,k]", "csf", "dense, dense, dense"),
    ("Y[b,h,t,o] = X[b,t,i] * W[h,o,i]", ROWS, "dense, dense, dense, dense"),
    ("Y[b,t,o] = X[b,t,h,i] * W[h,o,i]", ROWS, "dense, dense, dense"),
    ("Y[b,o] = W[o,i,j] * X[b,i] * Z[b,j]", ROWS, "dense, dense"),
    ("Y[b,i] = W[o,i,j] * X[b,o] * Z[b,j]", ROWS, "dense, dense"),
    ("Y[i,r] = W[i,j,k] * X[r,j] * Z[k,r]", "csf", "dense, dense"),
    (SAMPLED, "csr", None),
    ("Y[o,i] = W[o,i] * X[b,t,o] * Z[t,b,i]", "csc", None),
]


def drawn(
    text: str, form: str, extents: Mapping[str, int], density: float = 0.2, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """Operands by name, W sparse."""
    seeded = torch.Generator().manual_seed(0)
    found = {}
    for factor in text.partition("= ")[2].split(" * "):
        shape = [extents[name] for name in factor[2:-1].split(",")]
        found[factor[0]] = torch.randn(shape, generator=seeded, dtype=torch.float64).to(dtype)
    mask = torch.rand(found["W"].shape, generator=seeded) < density
    format = sparsify.Format(form, rank=mask.ndim) if form == "csf" else form
    found["W"] = sparsify.tensor(found["W"] * mask, format)
    return found


def extents_of(text: str, size: int) -> dict[str, int]:
    """An extent for each index variable, no two alike."""
    names = sorted(set(text) & set(string.ascii_lowercase))
    return {name: size + place for place, name in enumerate(names)}


def reference(text: str, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The result by `torch.einsum` in float64."""
    target, _, product = text.partition("= ")
    factors = product.split(" * ")
    subscripts = ",".join(factor[2:-1].replace(",", "") for factor in factors)
    dense = [operands[factor[0]] for factor in factors]
    dense = [o.to_dense() if isinstance(o, sparsify.SparseTensor) else o for o in dense]
    result = target.strip()[2:-1].replace(",", "")
    return torch.einsum(f"{subscripts}->{result}", *(o.double() for o in dense))


def kernel_of(text: str, operands: Mapping[str, torch.Tensor], result: str | None) -> Kernel:
    """Kernel for all sizes, compiled for the sizes of some operands."""
    program = program_of(text, None, result, None, operands)[0]
    given = [operands[name] for name in program.inputs]
    return compile_program(program, sizes=sizes_of(program, given))


def check(kernel: Kernel, text: str, operands: Mapping[str, torch.Tensor]) -> None:
    found = kernel(*(operands[name] for name in kernel.program.inputs))
    found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
    expected = reference(text, operands)
    bound = 1e-9 if found.dtype == torch.float64 else 1e-3
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)


def schedule_of(text: str, operands: Mapping[str, torch.Tensor], result: str | None) -> str:
    return str(evaluate_kernel(text, format=result, **operands).generated[-1].stages.schedule)


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (
            PRODUCTS[0],
            "split m mo mi 32 masked; order b, mo, k, n, mi; precompute tile_Y = Y at mo in thread; "
            "order Y: b, mo, mi, n; pack X_copy = X[k, mi] at mo in thread; transpose k mi in X_copy; "
            "transpose mi n in Y; vector mi in tile_Y; parallel b dynamic W",
        ),
        (
            PRODUCTS[2],
            "split t to ti 40 masked; order b, to, h, o, i, ti; precompute tile_Y = Y at h in thread; "
            "order Y: b, to, h, ti, o; precompute sums = tile_Y at o in register; "
            "pack X_copy = X[i, ti] at to in thread; transpose i ti in X_copy; transpose ti o in Y; "
            "vector ti in sums; vector ti in tile_Y; parallel b dynamic chunks 4",
        ),
        (
            PRODUCTS[6],
            "split r ro ri 40 masked; order ro, i, j, k, ri; precompute sums = Y at i in register; "
            "pack X_copy = X[j, ri] at ro in memory; transpose j ri in X_copy; vector ri in sums; vector ri in Y; "
            "parallel i in Y dynamic W",
        ),
    ],
    ids=["batched", "heads", "mttkrp"],
)
def test_lanes_run_along_what_the_sparse_operand_lacks(product, expected) -> None:
    text, form, result = product
    with override(vector_bytes=32):
        operands = drawn(text, form, extents_of(text, 30), dtype=torch.float32)
        assert schedule_of(text, operands, result) == expected


@pytest.mark.parametrize(
    ("text", "form", "result"),
    [
        ("Y[i,k] = W[i,j] * X[j,k]", "csr", "dense, dense"),
        ("Y[t,n] = X[t,k] * W[n,k]", "csr", "dense, dense"),  # panels
        ("Y[i,r] = W[i,j,k] * X[j,r] * Z[k,r]", "csf", "dense, dense"),
        ("Y[o,i] = W[o,i] * X[o,b] * Z[i,b]", "csr", None),
        ("Y[i] = W[i,j] * X[j]", "csr", "dense"),
    ],
)
def test_what_lies_along_the_lanes_is_left_alone(text: str, form: str, result: str | None) -> None:
    operands = drawn(text, form, extents_of(text, 40), dtype=torch.float32)
    assert "_copy" not in schedule_of(text, operands, result)


def test_copies_have_to_pay() -> None:
    one = {"b": 8, "m": 1, "k": 64, "n": 32}
    assert "_copy" not in schedule_of(BATCHED, drawn(BATCHED, ROWS, one), "dense, dense, dense")
    few = {"o": 30, "i": 30, "b": 2}
    assert "_copy" not in schedule_of(SAMPLED, drawn(SAMPLED, "csr", few, 0.01), None)
    assert "_copy" in schedule_of(SAMPLED, drawn(SAMPLED, "csr", {"o": 90, "i": 90, "b": 90}), None)


def test_long_sums_are_copied_in_parts() -> None:
    operands = drawn(SAMPLED, "csr", {"o": 400, "i": 700, "b": 900}, 0.05, torch.float32)
    text = schedule_of(SAMPLED, operands, None)
    assert text.startswith("distribute w; split b bs bp ")
    check(evaluate_kernel(SAMPLED, **operands), SAMPLED, operands)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("width", [0, 16, 32, 64])
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product[0])
def test_one_kernel_is_right_for_all_sizes(product, width: int) -> None:
    """Also for extents 0 and 1, nothing stored and everything stored."""
    text, form, result = product
    with override(vector_bytes=width, serial_threshold=0):
        operands = drawn(text, form, extents_of(text, 30))
        kernel = kernel_of(text, operands, result)
        if width and len(operands) == 2:
            assert "_copy" in str(kernel.generated[-1].stages.schedule)
        check(kernel, text, operands)
        names = list(extents_of(text, 0))
        for extents in (
            dict.fromkeys(names, 1),
            *({**extents_of(text, 5), name: 0} for name in names),
            extents_of(text, 11) | {names[0]: 70},
        ):
            for density in (0.0, 0.3, 1.0):
                check(kernel, text, drawn(text, form, extents, density))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("product", [PRODUCTS[0], PRODUCTS[4], PRODUCTS[7]], ids=lambda product: product[0])
def test_other_dtypes(product, dtype: torch.dtype) -> None:
    text, form, result = product
    operands = drawn(text, form, extents_of(text, 40), dtype=dtype)
    found = sparsify.evaluate(text, format=result, **operands)
    found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
    bound = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found.double(), reference(text, operands), rtol=bound, atol=10 * bound)


@pytest.mark.parametrize(
    "text", ["relu(sum(k, X[b,m,k] * W[b,k,n]) + c[n])", "sum(k, exp(X[b,m,k]) * W[b,k,n])"]
)
def test_what_is_computed_around_the_sum_and_of_its_operands(text: str) -> None:
    operands = drawn(BATCHED, ROWS, {"b": 3, "m": 40, "k": 30, "n": 20})
    if "c[n]" in text:
        operands["c"] = torch.randn(20).double()
    kernel = evaluate_kernel(f"Y[b,m,n] = {text}", format="dense, dense, dense", **operands)
    assert "X_copy" in str(kernel.generated[-1].stages.schedule)
    found = kernel(*(operands[name] for name in kernel.program.inputs))
    W, X = operands["W"].to_dense(), operands["X"]
    expected = (X @ W + operands["c"]).relu() if "c" in operands else X.exp() @ W
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("product", [PRODUCTS[0], PRODUCTS[2], PRODUCTS[4], PRODUCTS[7]], ids=lambda p: p[0])
def test_gradients(product) -> None:
    text, form, result = product
    extents = {name: 3 + place % 2 for place, name in enumerate(extents_of(text, 0))}
    operands = drawn(text, form, extents, 0.5)
    weight = operands.pop("W")
    dense = {name: operand.requires_grad_() for name, operand in operands.items()}

    def product_of(values: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        given = dict(zip(dense, others, strict=True))
        found = sparsify.evaluate(text, format=result, W=weight.with_values(values), **given)
        return found.values() if isinstance(found, sparsify.SparseTensor) else found

    values = weight.values().detach().requires_grad_()
    assert torch.autograd.gradcheck(product_of, (values, *dense.values()))


def test_gradients_of_weights_copy_what_lies_across_the_batch() -> None:
    text = "Y[b,o] = X[b,i] * W[o,i]"
    operands = drawn(text, "csr", {"b": 100, "i": 60, "o": 50}, dtype=torch.float32)
    kernel = evaluate_kernel(text, **operands).adjoint(("W",))
    given = {**operands, "g_Y": torch.randn(100, 50)}
    read = [given[name] for name in kernel.program.inputs]
    kernel.prepare(sizes_of(kernel.program, read))
    assert "pack X_copy = X[i, b" in str(kernel.generated[-1].stages.schedule)
    expected = (given["g_Y"].T @ given["X"]) * (operands["W"].to_dense() != 0)
    torch.testing.assert_close(kernel(*read).to_dense(), expected, rtol=1e-4, atol=1e-4)


def test_orders_know_of_copies() -> None:
    """`W` is not transposed for tiles of many rows, whose dense operand is copied, but for a single row of X."""
    for rows, expected in ((40, "m"), (1, "")):
        operands = drawn(BATCHED, ROWS, {"b": 4, "m": rows, "k": 100, "n": 50})
        program = program_of(BATCHED, None, "dense, dense, dense", None, operands)[0]
        sizes = sizes_of(program, [operands[name] for name in program.inputs])
        found = statement_order(program, program.statements[0], sizes)
        assert found is not None and found.copied == expected


def test_explain_says_what_is_copied_and_why() -> None:
    operands = drawn(BATCHED, ROWS, {"b": 4, "m": 40, "k": 100, "n": 50})
    text = "Y[b,m,n] = X[b,m,k] * W[b,n,k]"
    operands["W"] = sparsify.tensor(operands["W"].to_dense().mT.contiguous(), ROWS)
    found = sparsify.explain(text, **operands)
    assert "transposed copies of dense operands, so that lanes run along m" in found
    assert "inside mo, X is copied to X_copy, stored by k, mi, in memory of its own for each thread" in found
