"""The tests of flags, builds and the cache say themselves with which options."""

import pytest


@pytest.fixture(autouse=True)
def compiled_fast() -> None:
    """The options in force are those of users."""
