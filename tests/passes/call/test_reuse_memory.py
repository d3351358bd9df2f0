"""Large results of torch's operators in recycled memory: the same bits, and never memory that somebody still has."""

import copy
import io
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

import sparsify
from sparsify import options
from sparsify.passes.call import reuse_memory
from sparsify.passes.module.run_eager import eager
from sparsify.runtime.buffers import POOL, SMALLEST_BYTES
from sparsify.runtime.peak import Peak

ROWS = 512
CASES: dict[Any, tuple[Any, ...]] = {
    reuse_memory.aten.leaky_relu.default: (0.2,),
    reuse_memory.aten.pow.Tensor_Scalar: (2,),
    reuse_memory.aten.softmax.int: (-1,),
    reuse_memory.aten.index_select.default: (1, torch.arange(127, -1, -1)),
    reuse_memory.aten.matmul.default: (torch.randn(128, 96),),
    reuse_memory.aten.mm.default: (torch.randn(128, 96),),
    reuse_memory.aten.linear.default: (torch.randn(96, 128), torch.randn(96)),
    reuse_memory.aten.add.Tensor: (torch.randn(128),),
    reuse_memory.aten.sub.Tensor: (torch.randn(ROWS, 128, dtype=torch.float64),),
    reuse_memory.aten.mul.Tensor: (0.5,),
    reuse_memory.aten.div.Tensor: (torch.tensor(3.0),),
}


def rows(seed: int = 0, count: int = ROWS) -> torch.Tensor:
    return torch.randn(count, 128, generator=torch.Generator().manual_seed(seed))


def called(*steps: tuple[Any, tuple[Any, ...]]) -> Any:
    """What runs operators one after the other on its input."""
    graph = fx.Graph()
    root = nn.Module()
    value = graph.placeholder("x")
    for number, (operator, rest) in enumerate(steps):
        given = []
        for position, one in enumerate(rest):
            if isinstance(one, torch.Tensor):
                root.register_buffer(f"b{number}{position}", one)
                one = graph.get_attr(f"b{number}{position}")
            given.append(one)
        value = graph.call_function(operator, (value, *given))
    graph.output(value)
    return eager(graph, root, fx.GraphModule(root, graph).forward)


# Operators whose first operand is no matrix, with all of theirs.
OTHERS: dict[Any, tuple[Any, ...]] = {
    reuse_memory.aten.cat.default: ([rows(), rows(1)], 1),
    reuse_memory.aten.addmm.default: (torch.randn(96), rows(), torch.randn(128, 96)),
    reuse_memory.aten.bmm.default: (rows().view(4, -1, 128), torch.randn(4, 128, 96)),
}


@pytest.mark.parametrize("operator", [o for o in reuse_memory.INTO if o not in OTHERS], ids=str)
def test_every_operator_gives_the_same_bits(operator):
    x = rows().abs()
    run = called((operator, CASES.get(operator, ())))
    expected = operator(x, *CASES.get(operator, ()))
    with torch.no_grad():
        found = [run(x) for _ in range(3)]
    assert all(torch.equal(one, expected) for one in found)
    assert [POOL.has(one.untyped_storage()) for one in found] == [False, True, True]
    assert len({one.data_ptr() for one in found}) == 3


@pytest.mark.parametrize("operator", OTHERS, ids=str)
def test_operators_of_several_operands_give_the_same_bits(operator):
    node = fx.Graph().call_function(operator, ())
    site, large = reuse_memory.Site(node, -1), {}
    with torch.no_grad():
        expected = site.noting(large)(*OTHERS[operator])
        found = site.planned(large[site])(*OTHERS[operator])
    assert POOL.has(found.untyped_storage())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(4, 128, 128), (2, 2, 128, 128), (512, 128)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers_of_any_rank(shape, biased):
    rest = (torch.randn(96, 128), torch.randn(96))[: 1 + biased]
    run = called((reuse_memory.aten.linear.default, rest))
    x = rows().view(shape)
    turned = x.transpose(0, -2) if x.dim() > 2 else rows(1, 2 * ROWS)[::2]
    with torch.no_grad():
        for value in (x, x, turned, turned):
            found = run(value)
            torch.testing.assert_close(found, nn.functional.linear(value, *rest), rtol=1e-4, atol=1e-4)
        assert POOL.has(run(x).untyped_storage())


def test_an_operand_that_nothing_else_reads_is_written_over():
    aten = reuse_memory.aten
    run = called((aten.mul.Tensor, (2.0,)), (aten.gelu.default, ()), (aten.add.Tensor, (torch.ones(128),)))
    with torch.no_grad():
        run(rows())
        value = rows()
        with Peak() as peak:
            found = run(value)
    assert peak.bytes == found.nbytes
    assert torch.equal(found, nn.functional.gelu(rows() * 2.0) + torch.ones(128))


def test_operands_that_are_read_again_stay():
    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(reuse_memory.aten.mul.Tensor, (x, 2.0))
    view = graph.call_function(reuse_memory.aten.view.default, (doubled, [-1]))
    wide = graph.call_function(reuse_memory.aten.exp.default, (view,))
    tanh = graph.call_function(reuse_memory.aten.tanh.default, (doubled,))
    square = graph.call_function(reuse_memory.aten.mul.Tensor, (tanh, tanh))
    graph.output((doubled, wide, square))
    found_sites = reuse_memory.sites(graph)
    assert [found_sites[node].spent for node in (doubled, wide, tanh, square)] == [-1, -1, -1, 0]
    run = eager(graph, nn.Module(), fx.GraphModule(nn.Module(), graph).forward)
    with torch.no_grad():
        for seed in range(3):
            value = rows(seed)
            first, second, third = run(value)
            assert torch.equal(first, value * 2)
            assert torch.equal(second, (value * 2).view(-1).exp())
            assert torch.equal(third, torch.tanh(value * 2) ** 2)


@pytest.fixture(scope="module")
def applied() -> Iterator[tuple[nn.Module, Any]]:
    """A model of one kernel and torch's operators with large results."""
    torch.manual_seed(0)
    layers = nn.Linear(128, 192), nn.Linear(192, 160), nn.Linear(160, 96)
    layers[0].weight.data *= torch.rand(192, 128) < 0.1
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.GELU(), layers[2]).eval()
    rule = {"targets": ["param:0.weight"], "role": "weight", "source": "given"}
    with options.override(tune_seconds=0.0):
        yield model, sparsify.apply(model, {"schema": 1, "name": "given", "sparsify": [rule]}, rows())


def test_results_that_the_caller_keeps(applied):
    model, sparse = applied
    with torch.no_grad():
        kept = [sparse(rows(seed)) for seed in range(4)]
        views = [sparse(rows(seed)).t()[3:] for seed in range(4)]
        for seed in range(4, 8):
            sparse(rows(seed))
        for seed in range(4):
            torch.testing.assert_close(kept[seed], model(rows(seed)), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(views[seed], model(rows(seed)).t()[3:], rtol=1e-4, atol=1e-5)
        assert all(POOL.has(one.untyped_storage()) for one in kept)


def test_later_calls_allocate_nothing(applied):
    _, sparse = applied
    POOL.clear()
    with torch.no_grad():
        sparse(rows())
        before = POOL.held_bytes
        for seed in range(5):
            sparse(rows(seed))
    assert before == POOL.held_bytes > 0


def test_the_report_says_what_is_held_at_a_time(applied):
    _, sparse = applied
    # A layer's input and result; gelu writes over its operand.
    assert sparse.report.peak_bytes == ROWS * (192 + 160) * 4
    assert sparse.report.dense_peak_bytes == ROWS * (192 + 192) * 4


def test_shapes_that_change_and_threads_at_once(applied):
    model, sparse = applied
    wrong: list[int] = []

    def work(first: int) -> None:
        for turn in range(6):
            value = rows(first + turn, 384 + 64 * ((first + turn) % 4))
            with torch.no_grad():
                found, expected = sparse(value), model(value)
            if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
                wrong.append(first + turn)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_gradients_after_planned_calls(applied):
    model, sparse = applied
    with torch.no_grad():
        sparse(rows())
        sparse(rows())
    ours, theirs = rows().requires_grad_(), rows().requires_grad_()
    result = sparse(ours)
    with torch.no_grad():
        sparse(rows(5))  # what autograd saved stays
    result.square().sum().backward()
    model(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)


def test_inference_mode_and_transforms(applied):
    model, sparse = applied
    with torch.inference_mode():
        for seed in (0, 1):
            torch.testing.assert_close(sparse(rows(seed)), model(rows(seed)), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        tangent = torch.ones_like(rows())
        run = called((reuse_memory.aten.mul.Tensor, (2.0,)), (reuse_memory.aten.gelu.default, ()))
        run(rows())
        _, found = torch.func.jvp(run, (rows(),), (tangent,))
        _, expected = torch.func.jvp(lambda x: nn.functional.gelu(x * 2.0), (rows(),), (tangent,))
        torch.testing.assert_close(found, expected)
        mapped = torch.func.vmap(run)(rows().view(4, 128, 128))
        torch.testing.assert_close(mapped.view(ROWS, 128), nn.functional.gelu(rows() * 2.0))


def test_modes_that_look_on_see_torchs_own_calls():
    run = called((reuse_memory.aten.mul.Tensor, (2.0,)), (reuse_memory.aten.gelu.default, ()))
    with torch.no_grad():
        run(rows())

        class Names(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append((func, func(*args, **(kwargs or {}))))
                return seen[-1][1]

        seen: list[Any] = []
        with Names():
            run(rows())
    assert [func for func, _ in seen][-2:] == [reuse_memory.aten.mul.Tensor, reuse_memory.aten.gelu.default]
    assert torch.equal(seen[-2][1], rows() * 2.0)


def test_parameters_of_another_dtype():
    run = called((reuse_memory.aten.mul.Tensor, (torch.ones(128),)))
    root = run.__closure__
    assert root is not None
    module = next(cell.cell_contents for cell in root if isinstance(cell.cell_contents, nn.Module))
    with torch.no_grad():
        run(rows())
        module.b00 = torch.full((128,), 1 / 3, dtype=torch.float64)
        found = run(rows())
    assert torch.equal(found, rows() * torch.full((128,), 1 / 3, dtype=torch.float64))


def test_small_results_and_switching_it_off(applied):
    model, _ = applied
    small = called((reuse_memory.aten.mul.Tensor, (2.0,)))
    x = torch.ones(4, 4)
    assert 4 * x.nbytes < SMALLEST_BYTES
    with torch.no_grad():
        assert not any(POOL.has(small(x).untyped_storage()) for _ in range(2))
    rule = {"targets": ["param:0.weight"], "role": "weight", "source": "given"}
    with options.override(recycle=False, tune_seconds=0.0):
        plain = sparsify.apply(model, {"schema": 1, "name": "given", "sparsify": [rule]}, rows())
    with torch.no_grad():
        assert not any(POOL.has(plain(rows()).untyped_storage()) for _ in range(2))


def test_no_more_plans_than_needed(monkeypatch):
    monkeypatch.setattr(reuse_memory, "MOST_PLANS", 2)
    run = called((reuse_memory.aten.mul.Tensor, (2.0,)))
    plans = next(
        cell.cell_contents for cell in run.__closure__ if isinstance(cell.cell_contents, reuse_memory.Plans)
    )
    with torch.no_grad():
        for count in (512, 513, 514, 515, 513):
            assert torch.equal(run(rows(0, count)), rows(0, count) * 2)
            assert len(plans.known) <= 2


def test_copies_traces_and_files_hold_no_memory_of_the_pool(applied):
    model, sparse = applied
    with torch.no_grad():
        sparse(rows())
        expected = model(rows())
        twin = copy.deepcopy(sparse)
        torch.testing.assert_close(twin(rows()), expected, rtol=1e-4, atol=1e-5)
        file = io.BytesIO(pickle.dumps(sparse))
        assert file.getbuffer().nbytes < 2 * sparse.report.parameter_bytes[0]
        exported = torch.export.export(sparse, (rows(),)).module()
        compiled = torch.compile(sparse, backend="aot_eager")
        kept = compiled(rows()), exported(rows())
        compiled(rows(1)), exported(rows(1)), sparse(rows(1))
        for found in kept:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
