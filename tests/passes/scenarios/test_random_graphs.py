"""Random models over the operator table, with sparse leaves in random formats, against the dense model in float64.

Each seed draws a model, applies it, and compares two calls with different zeros, and gradients where it is trained.
Most seeds are evaluated without a C++ compiler, by torch's operators on the same programs: this covers the table, the
rewrites, formats, cuts, capture and gradients, not the kernels. One seed in four builds kernels, without optimisation:
this covers lowering and C++ as well, not the schedules that only timing or large extents choose.

`make test` runs the first seeds; `SPARSIFY_RANDOM_GRAPHS=20000 pytest -m exhaustive` as many as it says.
"""

import os

import pytest
import torch

from sparsify import options
from sparsify.passes.program.table import ROWS
from tests.passes.decide.random_models import (
    LAYOUTS,
    OPERATORS,
    Drawn,
    Leaf,
    Step,
    drawn,
    outcome,
    shrunk,
    smaller,
)

SEEDS = range(101)
MORE = range(SEEDS.stop, int(os.environ.get("SPARSIFY_RANDOM_GRAPHS", "600")))
KERNELS_EVERY = 4
BY_REFERENCE = {"compiler": "/nonexistent/c++"}
UNOPTIMISED = {"compiler_flags": ("-O0",)}


def made(steps, *leaves, **settings):
    """A model of steps `t0 = ..; t1 = ..` over leaves."""
    names = [leaf.name for leaf in leaves] + [f"t{number}" for number in range(len(steps))]
    found = [Step(f"t{n}", text, tuple(x for x in names if x in text)) for n, text in enumerate(steps)]
    settings = {"dtype": torch.float64, "is_trained": False, **settings}
    return Drawn(0, leaves, tuple(found), (f"t{len(steps) - 1}",), **settings)


# Models that were wrong, or failed, once.
FOUND = {
    "gradient on the pattern of blocks": made(
        ["aten.sinh(x0)", "aten.huber_loss(x1, t0, 2, 0.5)"],
        Leaf("x0", "csc", (2, 4), density=0.3, form="auto"),
        Leaf("x1", "param", (2, 4), density=0.3, form="bcsr(2, 2)"),
        is_trained=True,
    ),
    "statistics without entries": made(
        ["aten.batch_norm(x0, x1, x2, x3, x4, False, 0.1, 1e-5, False)"],
        Leaf("x0", "input", (4, 2, 0), form="auto"), Leaf("x1", "input", (2,)), Leaf("x2", "param", (2,)),
        Leaf("x3", "input", (2,), form="auto"), Leaf("x4", "input", (4, 0)),
    ),
    "blocks over the edge": made(
        ["aten.mm(x0, x1)"], Leaf("x0", "sparsify", (4, 3), form="bcsr(2, 2)"), Leaf("x1", "input", (3, 6))
    ),
    "blocks without columns": made(
        ["aten.scatter_add(x2, 0, x1, x0)"], Leaf("x0", "csc", (4, 0), form="bcsr(2, 2)"),
        Leaf("x1", "places", (4, 0), torch.int64, most=5), Leaf("x2", "input", (5, 0)),
    ),
    "several matrices by a sparse one": made(
        ["aten.linear(x1, x0, x2)"], Leaf("x0", "bsr", (5, 5), density=0.3, form="dcsr"),
        Leaf("x1", "input", (2, 3, 5)), Leaf("x2", "param", (5,)), is_trained=True,
    ),
    "norms of truth values": made(
        ["aten.cosine_similarity(x0, x1)"], Leaf("x0", "input", (5, 5), density=0.5, form="csr"),
        Leaf("x1", "input", (5, 5), torch.bool),
    ),
    "fills with many digits": made(
        ["aten.log_sigmoid(x0)", "aten.mm(t0, x1)"],
        Leaf("x0", "csr", (5, 5), density=0.1, form="dcsc"), Leaf("x1", "csr", (5, 6), density=0.1, form="dcsr"),
    ),
    "a number and sparse factors": made(
        ["aten.addcmul(x1, x0, x0, value=0.5)"], Leaf("x0", "csc", (5, 5), density=0.0, form="dense, compressed"),
        Leaf("x1", "input", ()),
    ),
    "gradient of another dtype": made(
        ["aten.sin(x0)", "aten.to(t0, torch.float32)", "aten.mul(t1, x1)"],
        Leaf("x0", "param", (5, 8), density=0.5, form="dcsc"), Leaf("x1", "input", (5, 8), is_differentiable=True),
        is_trained=True,
    ),
    "detached truth values": made(
        ["aten.to(x0, torch.bool)", "aten.detach(t0)"], Leaf("x0", "csr", (6, 8), density=0.3, form="dcsc")
    ),
    "truth values in blocks over the edge": made(
        ["aten.any(x0, 1)"], Leaf("x0", "input", (9, 7), torch.bool, density=0.5, form="bcsr(2, 2)")
    ),
    "places of a part of each row": made(
        ["aten.gather(x0, 0, x1)"], Leaf("x0", "csc", (6, 6), form="csr"),
        Leaf("x1", "places", (6, 2), torch.int64, most=6),
    ),
    "places of a part of each row, written to": made(
        ["aten.scatter_add(x0, 0, x1, x2)"], Leaf("x0", "input", (6, 6), form="csr"),
        Leaf("x1", "places", (6, 3), torch.int64, most=6), Leaf("x2", "input", (6, 3), form="csr"),
    ),
    "places of no column": made(
        ["aten.gather(x0, 0, x1)"], Leaf("x0", "csc", (4, 4), form="csr"),
        Leaf("x1", "places", (4, 0), torch.int64, most=4),
    ),
    "parts of an operator that stays torch's": made(
        ["aten.argmax(x0, 1, True)", "aten.scatter_reduce(t0, 0, x1, t0, 'amax', include_self=False)"],
        Leaf("x0", "input", (5, 6), density=0.3, form="dense, compressed"),
        Leaf("x1", "places", (5, 1), torch.int64, most=5),
    ),
    "edges in blocks": made(
        ["aten.scatter_reduce(x0, 1, x1, x2, 'amin')"], Leaf("x0", "coo", (1, 7), form="bcsr(2, 2)"),
        Leaf("x1", "places", (1, 5), torch.int64, most=7), Leaf("x2", "param", (1, 5)), is_trained=True,
    ),
    "edges in rows of one length": made(
        ["aten.scatter_reduce(x0, 1, x1, x2, 'amax')"], Leaf("x0", "coo", (1, 7), form="ell"),
        Leaf("x1", "places", (1, 5), torch.int64, most=7), Leaf("x2", "param", (1, 5)),
    ),
}  # fmt: skip


def reads_wrappers(model):
    """Whether a model has torch's internal copy, which ends the process for tensors without memory.

    Torch's fill is another one: of its own sparse layouts it fills stored entries alone.
    """
    laid_out = {leaf.name for leaf in model.leaves if leaf.kind in LAYOUTS}
    return any(
        "aten.copy(" in step.text or ("aten.fill(" in step.text and laid_out & set(step.read))
        for step in model.steps
    )


def settings_of(seed):
    return UNOPTIMISED if seed % KERNELS_EVERY == 0 else BY_REFERENCE


def check(found, settings):
    """Compares a random model; a failure shows the smallest model that still fails."""
    with options.override(**settings):
        try:
            return outcome(found)
        except Exception as error:
            kind = type(error)

            def fails(other):
                try:
                    outcome(other)
                except kind:
                    return True
                except Exception:
                    return False
                return False

            raise AssertionError(f"{error}\n{shrunk(found, fails)}") from error


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed):
    check(drawn(seed), settings_of(seed))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", MORE)
def test_more_random_graphs(seed):
    model = drawn(seed)
    if reads_wrappers(model):
        pytest.skip("torch's functional copy reads memory that sparse tensors do not have")
    check(model, settings_of(seed))


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [BY_REFERENCE, UNOPTIMISED], ids=["reference", "kernels"])
@pytest.mark.parametrize("name", FOUND)
def test_models_that_failed_once(name, settings):
    check(FOUND[name], settings)


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore")
def test_draws_have_regions_gradients_and_all_sections():
    models = (model for model in map(drawn, range(1000, 1012)) if not reads_wrappers(model))
    outcomes = [check(model, BY_REFERENCE) for model in models]
    assert sum(found.regions > 0 for found in outcomes) >= 4
    assert sum(found.gradients > 0 for found in outcomes) >= 2
    models = [drawn(seed) for seed in range(300)]
    read = {step.text.removeprefix("aten.").partition("(")[0] for found in models for step in found.steps}
    assert all(read & set(names) for names in OPERATORS.values())
    assert len(read & ROWS.keys()) > 120
    leaves = [leaf for found in models for leaf in found.leaves]
    assert {len(leaf.shape) for leaf in leaves if leaf.form} >= {2, 3}
    assert any(size == 0 for leaf in leaves for size in leaf.shape) and any(not leaf.shape for leaf in leaves)
    assert {"sparsify", "csr", "csc", "coo", "bsr"} <= {leaf.kind for leaf in leaves}


def test_a_failure_is_shrunk():
    """Steps in front of the wrong one become inputs, steps behind it go."""
    model = made(["aten.exp(x0)", "aten.sin(t0)", "aten.neg(t1)"], Leaf("x0", "input", (3, 4), form="csr"))
    found = shrunk(model, lambda other: any("sin" in step.text for step in other.steps))
    assert [step.text for step in found.steps] == ["aten.sin(t0)"]
    assert [leaf.name for leaf in found.leaves] == ["t0"] and list(smaller(found)) == []
