"""Fast path: taken only for operands like those of an earlier call, with the results of the slow path."""

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import sparsify
from sparsify.compiler import evaluate
from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.kernel import fast_call
from sparsify.compiler.kernel.variants import Variants
from sparsify.compiler.operands.arguments import DenseInput
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import InvalidTensorError, KernelError, ShapeError
from sparsify.options import current, override
from sparsify.runtime import torch_functions
from sparsify.runtime.buffers import POOL
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap
from tests.compiler.cpp.tiny_kernels import kernel as tiny_kernel

DENSE = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [4.0, 5.0, 0.0]])
SPMM, SDDMM = "ij,jk->ik", "ij,ik,jk->ij"


def matrix(**replaced: Any) -> SparseTensor:
    return sparsify.tensor(DENSE.to(**replaced) if replaced else DENSE.clone(), "csr")


def columns(rows: int = 3, seed: int = 0, **kind: Any) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(seed)
    made = torch.randint(-4, 5, (rows, 5), generator=seeded).to(kind.pop("dtype", torch.float32))
    return made.requires_grad_(kind.pop("requires_grad", False))


def warm(subscripts: str, *operands: torch.Tensor) -> torch.Tensor:
    """Result of a call on the fast path."""
    for _ in range(3):
        result = sparsify.einsum(subscripts, *operands)
    return result


def test_this_torch_has_the_functions() -> None:
    found = torch_functions.torch_functions()
    assert found is not None and len(found) == len(torch_functions.NAMES) + 2
    assert foreign_call.trampolines() is not None


def test_known_calls_leave_out_the_long_way(long_ways: list[str]) -> None:
    a, x, y = matrix(), columns(), columns(4, 1)
    expected = DENSE @ x
    learned = x.clone().requires_grad_()
    warm(SPMM, a, x)
    warm(SPMM, a, learned)  # autograd calls the kernel by a shortcut of its own, which may know other shapes
    warm(SDDMM, a, y, x)
    long_ways.clear()
    assert torch.equal(sparsify.einsum(SPMM, a, x), expected)
    assert torch.equal(sparsify.einsum(SPMM, a, learned), expected)
    assert torch.equal(sparsify.einsum(SPMM, a, torch.nn.Parameter(x)), expected)
    sampled = sparsify.einsum(SDDMM, a, y, x)
    torch.testing.assert_close(sampled.to_dense(), DENSE * (y @ x.T))
    assert sampled.pattern is a.pattern and sampled.fill == 0
    assert long_ways == []


def test_evaluate_takes_it_too(long_ways: list[str]) -> None:
    a, x, b = matrix(), columns(), torch.randn(5)
    text = "Y[i,k] = relu(sum(j, A[i,j] * X[j,k]) + b[k])"
    for _ in range(3):
        found = sparsify.evaluate(text, A=a, X=x, b=b)
    torch.testing.assert_close(found, torch.relu(DENSE @ x + b))
    long_ways.clear()
    sparsify.evaluate(text, A=a, X=x, b=b)
    assert long_ways == []


def test_known_statements_are_looked_up_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """New options, results and kinds of operands take the slow path."""
    a, x, y = matrix(), columns(), columns(4, 1)
    text = "Y[i,k] = max(sum(j, A[i,j] * X[j,k]), c * Z[i,k])"
    looked: list[Any] = []
    kernel_of = evaluate._evaluate_kernel
    monkeypatch.setattr(
        evaluate, "_evaluate_kernel", lambda *given, **how: looked.append(given) or kernel_of(*given, **how)
    )

    def check(expected: torch.Tensor, is_known: bool, *asked: Any, **given: Any) -> None:
        looked.clear()
        torch.testing.assert_close(sparsify.evaluate(text, *asked, **given), expected)
        assert (not looked) == is_known

    expected = torch.maximum(DENSE @ x, y)
    given = {"c": torch.tensor(1.0), "Z": y, "A": a, "X": x}
    for number in range(3):
        check(expected, number == 2, **given)  # one call makes the shortcut, one teaches it
    check(torch.maximum(DENSE @ (2 * x), y), True, **{**given, "X": 2 * x})
    for number in (2, 3.0):
        check(torch.maximum(DENSE @ x, number * y), False, **{**given, "c": number})
    check(expected.double(), False, **{**given, "Z": y.double()})
    check(expected, False, "Y", **given)
    for _ in range(3):  # lists may change
        check(expected, False, ["Y"], **given)
    with override(threads=1):
        check(expected, False, **given)
    check(expected, True, **given)


def test_sizes_of_statements_may_change() -> None:
    x, sizes = columns(), {"i": 2}
    for extent in (2, 2, 2, 4, 4, 2):
        sizes["i"] = extent
        found = sparsify.evaluate("Y[i,k] = sum(j, X[j,k])", sizes=sizes, X=x)
        assert torch.equal(found, x.sum(0).expand(extent, -1))


def test_operands_in_another_order_than_the_program(long_ways: list[str]) -> None:
    a, x = matrix(), columns()
    found = warm("jk,ij->ik", x, a)
    torch.testing.assert_close(found, DENSE @ x)
    long_ways.clear()
    learned = x.clone().requires_grad_()
    again = sparsify.einsum("jk,ij->ik", learned, a)
    again.sum().backward()
    torch.testing.assert_close(learned.grad, DENSE.sum(0)[:, None].expand(3, 5))


def test_values_and_shapes_that_change(long_ways: list[str]) -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    a.values().mul_(2)
    x += 1
    torch.testing.assert_close(sparsify.einsum(SPMM, a, x), 2 * DENSE @ x)
    for rows in (1, 3, 8):
        wide = torch.randn(3, rows)
        torch.testing.assert_close(warm(SPMM, a, wide), 2 * DENSE @ wide)


def test_large_results_come_from_the_pool(long_ways: list[str]) -> None:
    dense = torch.eye(300) * 3
    a, x = sparsify.tensor(dense, "csr"), torch.randn(300, 128)
    warm(SPMM, a, x)
    long_ways.clear()
    requests = POOL._requests
    assert torch.equal(sparsify.einsum(SPMM, a, x), 3 * x)
    assert POOL._requests == requests + 1
    full = sparsify.tensor(torch.randn(300, 300), "csr")
    y = torch.randn(300, 2)
    torch.testing.assert_close(warm(SDDMM, full, y, y).to_dense(), full.to_dense() * (y @ y.T))
    assert long_ways.count("Y") <= 3


class Noted(torch.Tensor):
    """A tensor subclass of a user."""


class Mode(TorchDispatchMode):
    """Records the operators dispatched by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def inference(value: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return value.clone()


# What an operand may be instead of a contiguous float32 tensor of the CPU.
DENSE_OPERANDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the same": lambda x: x,
    "turned": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], 2)[:, :, 0],
    "expanded": lambda x: x[:, :1].expand(3, 5),
    "a part": lambda x: torch.cat([x, x])[2:5],
    "negated": torch._neg_view,
    "conjugated": lambda x: torch.complex(x, x).conj().imag,
    "float64": torch.Tensor.double,
    "int32": torch.Tensor.int,
    "another shape": lambda x: x[:2],
    "another rank": lambda x: x[0],
    "empty": lambda x: x[:, :0],
    "a parameter": torch.nn.Parameter,
    "inference": inference,
    "a subclass": lambda x: x.as_subclass(Noted),
    "meta": lambda x: x.to("meta"),
    "sparse CSR": torch.Tensor.to_sparse_csr,
    "sparse COO": torch.Tensor.to_sparse,
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "a dense SparseTensor": lambda x: sparsify.tensor(x, "dense, dense"),
    "compressed": lambda x: sparsify.tensor(x, "csr"),
    "an array": lambda x: x.numpy(),
    "nothing": lambda x: None,
}


def outcome(compute: Callable[[], Any]) -> Any:
    """Outcome of a call: its dense result, or the class of its error."""
    try:
        result = compute()
    except Exception as error:
        return type(error)
    result = result.to_dense() if isinstance(result, SparseTensor) else result
    return type(result), repr(result.detach().tolist()), result.requires_grad


def without_shortcuts(subscripts: str, *operands: Any) -> Any:
    kernel, order = evaluate.einsum_kernel(subscripts, operands, None, None)
    return kernel._long_way(tuple([operands[place] for place in order]), None)


@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*:UserWarning")
@pytest.mark.parametrize("kind", DENSE_OPERANDS)
def test_dense_operands_of_all_kinds(kind: str) -> None:
    a, x = matrix(), columns()
    kernel, _ = evaluate.einsum_kernel(SPMM, (a, x), None, None)
    warm(SPMM, a, x)
    other = DENSE_OPERANDS[kind](x)
    for _ in range(3):
        expected = outcome(lambda: without_shortcuts(SPMM, a, other))
        assert outcome(lambda: sparsify.einsum(SPMM, a, other)) == expected
        # A kernel that was compiled for other operands refuses them by their dtype, shape and layout.
        assert outcome(lambda: kernel(a, other)) == outcome(lambda: kernel._long_way((a, other), None))


def test_negated_memory_is_not_read_as_it_is() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    torch.testing.assert_close(sparsify.einsum(SPMM, a, torch._neg_view(x)), -(DENSE @ x))
    imaginary = torch.complex(x, x).conj().imag
    torch.testing.assert_close(sparsify.einsum(SPMM, a, imaginary), -(DENSE @ x))
    negated = SparseTensor(a.pattern, torch._neg_view(a.values()))
    torch.testing.assert_close(warm(SPMM, negated, x), -(DENSE @ x))


def test_conjugated_memory_is_not_read_as_it_is() -> None:
    a, x = matrix(dtype=torch.complex64), torch.complex(columns(), columns(3, 1))
    expected = warm(SPMM, a, x)
    torch.testing.assert_close(expected, DENSE.to(torch.complex64) @ x)
    torch.testing.assert_close(sparsify.einsum(SPMM, a, x.conj()), expected.conj())


SPARSE_OPERANDS: dict[str, Callable[[], Any]] = {
    "another pattern": lambda: sparsify.tensor(DENSE.flip(0), "csr"),
    "fewer entries": lambda: sparsify.tensor(DENSE * torch.tensor([0.0, 1.0, 1.0]), "csr"),
    "no entries": lambda: sparsify.tensor(0 * DENSE, "csr"),
    "another fill": lambda: matrix().with_fill(2.0),
    "a fill that is no number": lambda: matrix().with_fill(float("nan")),
    "float64": lambda: matrix(dtype=torch.float64),
    "int64 coordinates": lambda: sparsify.tensor(DENSE.to_sparse_csr()),
    "another format": lambda: sparsify.tensor(DENSE, "csc"),
    "a parameter": lambda: torch.nn.Parameter(matrix()),
    "dense": lambda: DENSE.clone(),
    "another shape": lambda: sparsify.tensor(DENSE[:2], "csr"),
    "turned": lambda: sparsify.tensor(DENSE.T.contiguous(), "csc").t(),
    "inference values": lambda: SparseTensor(matrix().pattern, inference(matrix().values())),
}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*:UserWarning")
@pytest.mark.parametrize("kind", SPARSE_OPERANDS)
def test_sparse_operands_of_all_kinds(kind: str) -> None:
    a, x = matrix(), columns()
    kernel, _ = evaluate.einsum_kernel(SPMM, (a, x), None, None)
    warm(SPMM, a, x)
    other = SPARSE_OPERANDS[kind]()
    for _ in range(3):
        expected = outcome(lambda: without_shortcuts(SPMM, other, x))
        assert outcome(lambda: sparsify.einsum(SPMM, other, x)) == expected
        assert outcome(lambda: kernel(other, x)) == outcome(lambda: kernel._long_way((other, x), None))


def test_patterns_that_were_written_to() -> None:
    pos, crd = torch.tensor([0, 1, 3, 3, 5]), torch.tensor([1, 0, 2, 0, 1])
    pattern = Pattern(Format("csr"), (4, 3), (None, pos), (None, crd))
    a, x = SparseTensor(pattern, torch.ones(5)), columns()
    warm(SPMM, a, x)
    expected = sparsify.einsum(SPMM, a, x)
    crd[0] = 2
    assert torch.equal(sparsify.einsum(SPMM, a, x), expected)
    pattern._crd[1][0] = 2
    with pytest.raises(InvalidTensorError, match="written to"):
        sparsify.einsum(SPMM, a, x)


def test_arrays_that_move() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    for array in (*a.pattern.arrays_in_place(), a._vals, x):
        array.share_memory_()
    torch.testing.assert_close(sparsify.einsum(SPMM, a, x), DENSE @ x)


def test_fake_tensors_and_modes() -> None:
    a, x = matrix(), columns()
    expected = warm(SPMM, a, x)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode:
        assert outcome(lambda: sparsify.einsum(SPMM, a, fake)) == outcome(
            lambda: without_shortcuts(SPMM, a, fake)
        )
    assert outcome(lambda: sparsify.einsum(SPMM, a, fake)) == outcome(
        lambda: without_shortcuts(SPMM, a, fake)
    )
    with Mode() as looking:
        assert torch.equal(sparsify.einsum(SPMM, a, x), expected)
    assert any(name.startswith("sparsify.") for name in looking.seen)
    with torch.device("meta"):
        assert torch.equal(sparsify.einsum(SPMM, a, x), expected)


def test_transforms_of_functorch() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    batch = torch.stack([x, 2 * x])
    learned = x.clone().requires_grad_()
    for compute in (
        lambda: torch.func.vmap(lambda one: without_shortcuts(SPMM, a, one))(batch),
        lambda: torch.func.grad(lambda one: without_shortcuts(SPMM, a, one).sum())(x),
        lambda: torch.func.grad(lambda one: (without_shortcuts(SPMM, a, learned) * one.sum()).sum())(x),
    ):
        expected = outcome(compute)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "without_shortcuts", sparsify.einsum)
            assert outcome(compute) == expected


def test_a_tensor_of_a_transform_that_has_ended() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    left: list[torch.Tensor] = []
    torch.func.grad(lambda one: left.append(one) or one.sum())(x)
    assert outcome(lambda: sparsify.einsum(SPMM, a, left[0])) == outcome(
        lambda: without_shortcuts(SPMM, a, left[0])
    )


def test_compiled_callers() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    compiled = torch.compile(
        lambda one: sparsify.einsum(SPMM, a, one * 2) + 1, backend="eager", fullgraph=True
    )
    for _ in range(3):
        torch.testing.assert_close(compiled(x), DENSE @ (2 * x) + 1)


def test_inference_mode() -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    with torch.inference_mode():
        result = sparsify.einsum(SPMM, a, x)
        assert result.is_inference()
    learned = x.clone().requires_grad_()
    with torch.inference_mode():
        assert not sparsify.einsum(SPMM, a, learned).requires_grad
    with torch.no_grad():
        assert not sparsify.einsum(SPMM, a, learned).requires_grad
    assert sparsify.einsum(SPMM, a, learned).requires_grad


@pytest.mark.sampled(2)
def test_gradients_of_every_operand() -> None:
    a = sparsify.tensor(DENSE.double(), "csr")
    x, y = (columns(n, n, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    values = a.values().clone().requires_grad_()

    def both(values: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        learned = a.with_values(values)
        return sparsify.einsum(SPMM, learned, x), sparsify.einsum(SDDMM, learned, y, x).values()

    both(values, x, y)
    assert torch.autograd.gradcheck(both, (values, x, y))
    assert torch.autograd.gradgradcheck(both, (values, x, y))


def learned_matrix() -> SparseTensor:
    made: SparseTensor = matrix().requires_grad_()
    return made


def test_writes_to_what_backward_reads_are_noticed() -> None:
    for write in (lambda a, x: a.values().detach().mul_(2), lambda a, x: a._vals.mul_(2)):
        a, x = matrix(), columns().requires_grad_()
        warm(SPMM, a, x)
        result = sparsify.einsum(SPMM, a, x)
        write(a, x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    a, x = learned_matrix(), columns()
    warm(SPMM, a, x)
    result = sparsify.einsum(SPMM, a, x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    x = columns().requires_grad_()
    text = "Y[i,k] = exp(sum(j, A[i,j] * X[j,k]))"
    for _ in range(3):
        result = sparsify.evaluate(text, A=matrix(), X=x)
    result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_writes_to_what_backward_does_not_read() -> None:
    a, x = matrix(), columns().requires_grad_()
    result = warm(SPMM, a, x)
    torch.relu_(result)
    result.sum().backward()
    torch.testing.assert_close(x.grad, DENSE.T @ (DENSE @ x.detach() > 0).float())


def test_what_backward_does_not_read_is_not_kept() -> None:
    a, x = matrix(), columns().requires_grad_()
    warm(SPMM, a, x)
    once = x * 2
    result, known = sparsify.einsum(SPMM, a, once), weakref.ref(once)
    saved = result.grad_fn.saved_tensors  # type: ignore[union-attr]
    assert saved[0] is a and all(tensor is not once for tensor in saved)
    del once
    assert known() is None


def test_a_missing_gradient_of_a_result() -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> None:
            return None

    a, x = matrix(), columns().requires_grad_()
    warm(SPMM, a, x)
    Stop.apply(sparsify.einsum(SPMM, a, x)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None or torch.equal(x.grad, torch.zeros(3, 5))
    sampled = sparsify.einsum(SDDMM, a, columns(4, 2), x)
    Stop.apply(sampled.values()).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None or torch.equal(x.grad, torch.zeros(3, 5))


def test_wrong_numbers_of_operands() -> None:
    a, x = matrix(), columns()
    kernel, _ = evaluate.einsum_kernel(SPMM, (a, x), None, None)
    for _ in range(3):
        kernel(a, x)
    for operands in ((), (a,), (a, x, x)):
        with pytest.raises(ShapeError, match="operands for A, B"):
            kernel(*operands)


@pytest.mark.sampled(2)
def test_more_frames_than_the_table_has() -> None:
    a = matrix()
    for _ in range(2):
        for width in range(1, 200):
            x = torch.ones(3, width)
            assert torch.equal(sparsify.einsum(SPMM, a, x), DENSE @ x)


def test_references_are_given_back() -> None:
    a, x = matrix(), columns()
    y = columns(4, 1)
    for _ in range(100):  # kernels, frames, and what is learned of the pattern
        warm(SPMM, a, x), warm(SDDMM, a, y, x)
    result = weakref.ref(sparsify.einsum(SPMM, a, x))
    assert result() is None
    gc.collect()
    before = [len(gc.get_referrers(value)) for value in (a, x, a.pattern, a._vals)]
    counts = [sys.getrefcount(value) for value in (a, x, a.pattern, a._vals)]
    for _ in range(1000):
        sparsify.einsum(SPMM, a, x)
        sparsify.einsum(SDDMM, a, y, x)
        outcome(lambda: sparsify.einsum(SPMM, a, x[:2]))
        sparsify.einsum(SPMM, a, x.double().float().t().contiguous().t())
    gc.collect()
    assert counts == [sys.getrefcount(value) for value in (a, x, a.pattern, a._vals)]
    assert before == [len(gc.get_referrers(value)) for value in (a, x, a.pattern, a._vals)]


def test_patterns_are_forgotten_with_their_tensors() -> None:
    x = columns()
    a = matrix()
    warm(SPMM, a, x)
    pattern = weakref.ref(a.pattern)
    del a
    gc.collect()
    assert pattern() is None
    torch.testing.assert_close(warm(SPMM, sparsify.tensor(DENSE.flip(0), "csr"), x), DENSE.flip(0) @ x)


def test_threads_call_at_once() -> None:
    a = matrix()
    widths = [torch.randn(3, 1 + width % 70) for width in range(140)]

    def work(seed: int) -> bool:
        for turn in range(300):
            x = widths[(turn * 7 + seed) % len(widths)]
            if not torch.allclose(sparsify.einsum(SPMM, a, x), DENSE @ x, atol=1e-5):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_number_of_threads_is_that_of_torch_at_the_call() -> None:
    dense = torch.randn(400, 400) * (torch.rand(400, 400) < 0.5)
    a, x = sparsify.tensor(dense, "csr"), torch.randn(400, 32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.testing.assert_close(warm(SPMM, a, x), dense @ x, atol=1e-3, rtol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_computes_on_one_thread() -> None:
    dense = torch.randn(400, 400) * (torch.rand(400, 400) < 0.5)
    a, x = sparsify.tensor(dense, "csr"), torch.randn(400, 32)
    expected = warm(SPMM, a, x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(sparsify.einsum(SPMM, a, x), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_options_have_shortcuts_of_their_own(long_ways: list[str]) -> None:
    a, x = matrix(), columns()
    warm(SPMM, a, x)
    with override(vector_bytes=0):
        torch.testing.assert_close(sparsify.einsum(SPMM, a, x), DENSE @ x)
        assert long_ways


def test_another_torch_has_no_shortcuts(monkeypatch: pytest.MonkeyPatch, long_ways: list[str]) -> None:
    monkeypatch.setattr(torch_functions, "NAMES", (("libtorch_cpu", "no_such_function"),))
    assert torch_functions.torch_functions.__wrapped__() is None
    monkeypatch.setattr(fast_call, "torch_functions", lambda: None)
    assert fast_call.fast_path_library.__wrapped__(current()) is None
    monkeypatch.setattr(fast_call, "fast_path_library", lambda options: None)
    monkeypatch.setattr(evaluate, "_shortcuts", {})
    a, x = matrix(), columns()
    torch.testing.assert_close(warm("ij,jl->il", a, x), DENSE @ x)
    assert long_ways


def test_answers_that_are_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {
        name: getattr(torch_functions._library(library), name) for library, name in torch_functions.NAMES
    }
    offset = torch_functions._offset()
    assert offset is not None and torch_functions._are_as_expected(functions, offset)
    functions["aoti_torch_get_dim"] = functions["aoti_torch_get_numel"]
    assert not torch_functions._are_as_expected(functions, offset)


def by_hand(source: str, sizes: tuple[int, ...], *operands: torch.Tensor) -> Any:
    """Result of a hand-written C++ kernel with dense operands and three float32 results."""
    formats = [Format("dense", rank=operand.dim()) for operand in operands]
    declared = [
        Declaration(f"A{n}", tuple(f"{n}{mode}" for mode in range(operand.dim())), format, "float32")
        for n, (format, operand) in enumerate(zip(formats, operands, strict=True))
    ]
    extents = {
        name: size
        for one, operand in zip(declared, operands)
        for name, size in zip(one.extents, operand.shape)
    }
    ranges = {name: (size, size) for name, size in ({"i": 3} | extents).items()}
    inputs = [(place, DenseInput(one)) for place, one in enumerate(declared)]
    result = fast_call.Result(("i",), torch.float32, None, 0, torch.empty)
    call = fast_call.KernelCall(library(tiny_kernel(source)).address, sizes, 1, (result,))
    inputs = tuple([fast_call.Read(place, DenseInput(one)) for place, one in enumerate(declared)])
    plan = fast_call.Plan((fast_call.Stage(inputs, call, 1, ranges),), (len(operands),))
    taught: list[bool] = []

    def otherwise(given: tuple[torch.Tensor, ...], learn: fast_call.Learn) -> Any:
        made = fast_call.frame(given, plan)
        if learn is None or made is None or taught:
            return "the long way"
        learn(ctypes.addressof(made))
        taught.append(True)
        return run(given)

    run = fast_call.shortcut(otherwise)
    return run(operands)


def test_what_arrives_in_the_kernel() -> None:
    body = """\
float *out = (float *)buffers[1];
  out[0] = (float)sizes[1];
  out[1] = ((const float *)buffers[0])[2];
  out[2] = (float)context->threads;"""
    assert by_hand(body, (5, 6), torch.tensor([1.0, 2.0, 3.0])).tolist() == [6, 3, 1]


def test_statuses_are_errors() -> None:
    with pytest.raises(KernelError, match="does not fit int32"):
        by_hand("return sizes[0];", (2,), torch.ones(3))
    with pytest.raises(TypeError, match="needs an allocator"):
        by_hand("context->allocate(context->state, 0, 8);", (), torch.ones(3))


def test_calls_that_no_frame_holds() -> None:
    one = torch.ones(3)
    assert by_hand("", (), *[one] * fast_call.OPERANDS) is not None
    assert by_hand("", (), *[one] * (fast_call.OPERANDS + 1)) == "the long way"
    assert by_hand("", (0,) * (fast_call.SIZES + 1), one) == "the long way"
    assert by_hand("", (), torch.ones([1] * (fast_call.MODES + 1))) == "the long way"


def test_other_formats_of_one_shape_have_gradients_of_their_own():
    dense = torch.rand(7, 9) * (torch.rand(7, 9) < 0.4)
    x = torch.rand(9, 4)
    for format in ("csr", "csc", "coo", "csr", "csc"):
        A = sparsify.tensor(dense, format).requires_grad_()
        for _ in range(3):
            y = sparsify.einsum("ij,jk->ik", A, x)
            torch.testing.assert_close(y, dense @ x)
            (found,) = torch.autograd.grad(y.sum(), A)
            torch.testing.assert_close(found.to_dense(), x.sum(1).expand(7, 9) * (dense != 0))


def drawn(seed: int, format: str, is_wide: bool = False) -> SparseTensor:
    """A matrix of 24 entries anywhere: another pattern for each seed, and the same kernel."""
    seeded = torch.Generator().manual_seed(seed)
    places = torch.randperm(80, generator=seeded)[:24].sort().values
    at = torch.stack([places // 10, places % 10])
    values = torch.randint(1, 5, (24,), generator=seeded).float()
    if is_wide:
        return sparsify.tensor(torch.sparse_coo_tensor(at, values, (8, 10)).to_dense().to_sparse_csr())
    return sparsify.tensor((at, values, (8, 10)), format)


def test_patterns_not_met_before_leave_out_the_long_way(long_ways: list[str]) -> None:
    x = torch.randint(-4, 5, (10, 4)).float()
    first = drawn(99, "csr")
    for seed in range(3):
        warm(SPMM, drawn(seed, "csr"), x)
        _ = drawn(seed, "csr") + first, drawn(seed, "csr") * first
    long_ways.clear()
    for seed in range(3, 8):
        a = drawn(seed, "csr")
        assert torch.equal(sparsify.einsum(SPMM, a, x), a.to_dense() @ x)
        assert torch.equal((a + first).to_dense(), a.to_dense() + first.to_dense())
        assert torch.equal((drawn(seed, "csr") * first).to_dense(), a.to_dense() * first.to_dense())
    assert long_ways == []
    for seed in range(8, 11):
        a, learned = drawn(seed, "csr"), x.clone().requires_grad_()
        sparsify.einsum(SPMM, a, learned).sum().backward()
        assert torch.equal(learned.grad, a.to_dense().sum(0)[:, None].expand(10, 4))


def test_patterns_not_met_before_in_other_formats_have_their_own_kernels() -> None:
    """Alternating formats and dtypes of one shape and number of entries: calls without a frame take the slow path."""
    x, first = torch.randint(-4, 5, (10, 4)).float(), drawn(99, "csr")
    kinds = [("csr", False), ("csc", False), ("coo", False), ("csr", True)]
    formats: dict[Any, Format] = {}
    for seed in range(20):
        kind = kinds[seed * 3 % len(kinds)]
        a = drawn(seed, *kind)
        assert torch.equal(sparsify.einsum(SPMM, a, x), a.to_dense() @ x)
        total = a + first
        assert torch.equal(total.to_dense(), a.to_dense() + first.to_dense())
        assert total.format == formats.setdefault(kind, total.format)
    assert [drawn(0, *kind).pattern.crd[-1].dtype for kind in (kinds[0], kinds[3])] == [
        torch.int32,
        torch.int64,
    ]


def with_longest(longest: int) -> SparseTensor:
    """A matrix of 8192 entries with a first row of given length; all other rows have about equal lengths."""
    each, more = divmod(8192 - longest, 127)
    lengths = torch.tensor([longest] + [each + (row < more) for row in range(127)])
    starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    columns = torch.cat([torch.arange(int(length)) for length in lengths]).int()
    pattern = Pattern(Format("csr"), (128, 1024), (None, starts), (None, columns))
    return SparseTensor(pattern, torch.arange(8192) % 5 - 2.0)


def test_patterns_with_other_longest_rows_have_their_own_kernels(long_ways: list[str]) -> None:
    """Patterns of equal shape and number of entries may need other schedules."""
    x = torch.randint(-4, 5, (1024, 4)).float()
    warm(SPMM, with_longest(64), x)
    long_ways.clear()
    uneven = with_longest(900)
    assert torch.equal(sparsify.einsum(SPMM, uneven, x), uneven.to_dense() @ x)
    assert long_ways
    for seed in range(3):
        for longest in (64, 900):  # they take turns
            a = with_longest(longest)
            long_ways.clear()
            assert torch.equal(sparsify.einsum(SPMM, a, x), a.to_dense() @ x)
            assert not seed or not long_ways


def test_calls_in_turns_keep_their_frames(long_ways: list[str]) -> None:
    """Also calls whose frames are neighbours in the small hash table."""
    shapes = [(rows, columns) for rows in range(3, 8) for columns in range(30, 40)]
    for shape in shapes:
        for turn in range(3):
            for one in (shapes[0], shape):
                long_ways.clear()
                A, x = torch.ones(one), torch.ones(one[1])
                assert torch.equal(sparsify.einsum("ij,j->i", A, x), A.sum(1))
                assert turn < 2 or not long_ways


def test_patterns_not_met_before_are_checked() -> None:
    """Arrays written to after the pattern was made, and coordinates outside of the shape."""
    x = torch.ones(10, 4)
    warm(SPMM, drawn(0, "csr"), x)
    written = drawn(1, "csr")
    written.pattern._crd[1].zero_()
    with pytest.raises(InvalidTensorError, match="written to"):
        sparsify.einsum(SPMM, written, x)
    good = drawn(2, "csr").pattern
    outside = good.crd[1].clone()
    outside[-1] = 1000
    malformed = Pattern(good.format, (8, 10), good.pos, (None, outside))
    with pytest.raises(InvalidTensorError):
        sparsify.einsum(SPMM, wrap(malformed, torch.ones(24)), x)


def banded(rows: int) -> SparseTensor:
    """A square matrix with two entries a row."""
    at = torch.arange(rows)
    places = torch.stack([at.repeat(2), torch.cat([at, (at + 1) % rows])])
    return sparsify.tensor((places, torch.rand(2 * rows).double(), (rows, rows)), "csr")


def test_sizes_of_a_class_share_a_kernel_and_its_frame(
    long_ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(rows: int, columns: int = 5) -> None:
        matrix, dense = banded(rows), torch.rand(rows, columns).double()
        torch.testing.assert_close(sparsify.einsum("ij,jq->iq", matrix, dense), matrix.to_dense() @ dense)

    for _ in range(3):
        product(700)
    long_ways.clear()
    for rows in (700, 512, 900, 1023, 1100, 460):  # an octave, and an eighth of its ends on both sides
        product(rows)
        assert not long_ways, rows
    product(2000)
    assert long_ways
    asked: list[Sizes] = []
    best = Variants.best
    monkeypatch.setattr(Variants, "best", lambda self, sizes: (asked.append(sizes), best(self, sizes))[1])
    product(1500)
    product(700)
    assert not asked  # both classes are known
    product(700, 6)
    assert [sizes.extents["q"] for sizes in asked] == [6]  # few columns are a class by themselves


def test_extents_of_a_class_are_still_compared(long_ways: list[str]) -> None:
    matrix = banded(700)
    for _ in range(3):
        sparsify.einsum("ij,jr->ir", matrix, torch.rand(700, 5).double())
    with pytest.raises(ShapeError, match="700"):
        sparsify.einsum("ij,jr->ir", matrix, torch.rand(701, 5).double())


def test_large_results_of_a_class_come_from_the_pool(long_ways: list[str]) -> None:
    for rows in (600, 600, 600, 511, 512, 513):  # 128 KiB are 512 rows of 32 numbers
        matrix, dense = banded(rows), torch.rand(rows, 32).double()
        found = sparsify.einsum("ij,js->is", matrix, dense)
        torch.testing.assert_close(found, matrix.to_dense() @ dense)
        assert found.is_contiguous() and POOL.has(found.untyped_storage()) == (rows * 32 * 8 >= 128 * 1024)
