"""What all tests share: golden files, a kernel cache of their own, the folder of real data."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Threads of torch that several workers share: more of them than cores wait for each other at each small operator.
# Kernels keep two threads, so that their parallel loops run in parallel.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    own = max(len(os.sched_getaffinity(0)) // workers, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(own))
    os.environ.setdefault("SPARSIFY_THREADS", str(max(own, 2)))

import pytest
import torch.distributed as dist

from sparsify import options

from . import kernel_objects, sampling

sampling.fix_day()
TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
SHARED_DATA = TESTS.parent.parent / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew instead of comparing"
    )


def pytest_report_header() -> str:
    return f"samples: {sampling.DAY_VARIABLE}={os.environ[sampling.DAY_VARIABLE]} repeats them"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sampling.mark_other_days(items, int(os.environ[sampling.DAY_VARIABLE]))


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One kernel cache for the whole session, shared by all workers; the user's own is never touched."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernel-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSIFY_CACHE_DIR", str(directory))
        patch.setenv("SPARSIFY_TUNE_SECONDS", "0")  # what is chosen must not depend on the machine
        patch.setenv("SPARSIFY_CXXFLAGS", "-O0")  # a third of the build time; see `compiled_optimised`
        options.from_environment.cache_clear()
        yield directory
    options.from_environment.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def reused_objects() -> Iterator[None]:
    """Objects of equal kernels are built once for all test runs; `SPARSIFY_TEST_OBJECTS=` builds all of them."""
    folder = os.environ.get("SPARSIFY_TEST_OBJECTS", str(TESTS.parent / "build" / "test-kernels"))
    if not folder:
        yield
        return
    with kernel_objects.reused(Path(folder)):
        yield


@pytest.fixture(scope="session", autouse=True)
def rare_collections() -> Iterator[None]:
    """Garbage collections take a twentieth of the time: imports are frozen, and thresholds are higher."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)
    yield
    gc.set_threshold(*before)


@pytest.fixture(scope="module", autouse=True)
def frozen_memory() -> Iterator[None]:
    """What a module of tests leaves is looked at by no later collection, whose time would grow from test to test."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_process_group() -> Iterator[None]:
    """Destroys the group of one process that `sparsify.shard` starts: later modules of tests run without a group."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width of a terminal, which workers of pytest-xdist have; tests about widths set one."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def compiled_optimised(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels with the compiler flags of users, in the test and in its child processes."""
    monkeypatch.delenv("SPARSIFY_CXXFLAGS")
    with options.override(compiler_flags=()):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("spmm.cpp", text)` compares a text with `tests/golden/spmm.cpp`.

    `pytest --update-golden` writes the file; read it before it is committed.
    """

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text if text.endswith("\n") else f"{text}\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing: run pytest --update-golden, read it, commit it"
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}; pytest --update-golden accepts it"
        )

    return compare


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets: `SPARSIFY_DATA_ROOT`, else `shared/data` beside the checkout."""
    named = os.environ.get("SPARSIFY_DATA_ROOT")
    root = Path(named) if named else SHARED_DATA
    if not root.is_dir():
        pytest.skip(f"real data sets are not here: {root} is missing; set SPARSIFY_DATA_ROOT to their folder")
    return root
