"""Kernels of many expressions: what they compute matters here, not how fast; other rooms compile them as users do."""

from collections.abc import Iterator

import pytest

from sparsify.options import override


@pytest.fixture(autouse=True)
def compiled_fast() -> Iterator[None]:
    """Without optimisation a kernel is compiled in a third of the time."""
    with override(compiler_flags=("-O0",)):
        yield
