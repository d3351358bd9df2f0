"""Build of the C++ units that kernels of all models share, beside other work.

In: `with built_ahead(): capture(...)`. Out: the function that calls kernels and the sort of edges, compiled while the
model was captured; units known to the process or stored on disk are not compiled.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Final

from sparsify.compiler.arrays import sort_edges
from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.build import has_compiler
from sparsify.errors import SparsifyError
from sparsify.options import current

UNITS: Final = (foreign_call.trampolines, sort_edges.load)


@contextmanager
def built_ahead() -> Iterator[None]:
    """A context in which threads build the shared units; all are built, or have failed, at its end."""
    if not has_compiler(current()):
        yield
        return
    with ThreadPoolExecutor(len(UNITS), thread_name_prefix="sparsify-build") as pool:
        for unit in UNITS:
            pool.submit(copy_context().run, _tried, unit)
        yield


def _tried(unit: Callable[[], object]) -> None:
    """Builds a unit; its first use reports a failure."""
    with suppress(SparsifyError):
        unit()
