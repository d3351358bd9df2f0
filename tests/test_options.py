"""Options: what the environment gives, what is refused, and overriding."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsify import options
from sparsify.errors import SparsifyError
from sparsify.options import Options


@pytest.fixture(autouse=True)
def reread() -> Iterator[None]:
    """Every test reads the environment anew."""
    options.from_environment.cache_clear()
    yield
    options.from_environment.cache_clear()


@pytest.mark.parametrize(
    "name, text, field, value",
    [
        ("SPARSIFY_VECTOR_BYTES", "32", "vector_bytes", 32),
        ("SPARSIFY_VECTOR_BYTES", "0", "vector_bytes", 0),
        ("SPARSIFY_VECTOR_BYTES", "", "vector_bytes", None),
        ("SPARSIFY_THREADS", "3", "threads", 3),
        ("SPARSIFY_SERIAL_THRESHOLD", "0", "serial_threshold", 0),
        ("SPARSIFY_CXX", "clang++", "compiler", "clang++"),
        ("SPARSIFY_CXXFLAGS", "-g -O1", "compiler_flags", ("-g", "-O1")),
        ("SPARSIFY_COMPILER_TIMEOUT", "2.5", "compiler_timeout", 2.5),
        ("SPARSIFY_CACHE_DIR", "/somewhere", "cache_dir", Path("/somewhere")),
        ("SPARSIFY_DUMP", "einsum, cpp", "dump", ("einsum", "cpp")),
        ("SPARSIFY_STRICT", "1", "strict", True),
        ("SPARSIFY_STRICT", "off", "strict", False),
        ("SPARSIFY_DEBUG_ASSERTS", "0", "debug_asserts", False),
        ("SPARSIFY_QUIET", "1", "quiet", True),
    ],
)
def test_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(options.from_environment(), field) == value


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("SPARSIFY_VECTOR_BYTES", "24", "SPARSIFY_VECTOR_BYTES=24; 0 (scalar), 16, 32 or 64"),
        ("SPARSIFY_THREADS", "many", "SPARSIFY_THREADS=many is not a whole number"),
        ("SPARSIFY_THREADS", "0", "SPARSIFY_THREADS=0; 1 or more"),
        ("SPARSIFY_COMPILER_TIMEOUT", "-1", "SPARSIFY_COMPILER_TIMEOUT=-1; seconds, more than 0"),
        (
            "SPARSIFY_STRICT",
            "maybe",
            "SPARSIFY_STRICT=maybe is neither yes nor no; set SPARSIFY_STRICT to 1 or 0",
        ),
    ],
)
def test_mistakes_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SparsifyError) as error:
        options.from_environment()
    assert str(error.value).startswith(said)


def test_sparsify_cxx_wins_over_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++")
    assert options.from_environment().compiler == "c++"
    options.from_environment.cache_clear()
    monkeypatch.setenv("SPARSIFY_CXX", "g++")
    assert options.from_environment().compiler == "g++"


def test_override_nests_and_ends() -> None:
    before = options.current()
    with options.override(vector_bytes=16), options.override(threads=1) as inner:
        assert inner is options.current()
        assert (inner.vector_bytes, inner.threads) == (16, 1)
    assert options.current() is before


def test_override_ends_after_an_error() -> None:
    before = options.current()
    with pytest.raises(KeyError), options.override(strict=True):
        raise KeyError
    assert options.current() is before


def test_options_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Options().strict = True  # type: ignore[misc]
