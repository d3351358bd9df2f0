"""Shared C++ units built beside other work."""

import threading

from sparsify import options
from sparsify.compiler.kernel import build_ahead
from sparsify.compiler.kernel.build_ahead import built_ahead
from sparsify.errors import BuildError


def test_units_are_built_beside_other_work(monkeypatch):
    begun, is_captured, built = threading.Event(), threading.Event(), []

    def unit() -> None:
        begun.set()
        if is_captured.wait(10):
            built.append(options.current().serial_threshold)

    def broken() -> None:
        raise BuildError("the C++ compiler ended with status 1", "none")

    monkeypatch.setattr(build_ahead, "UNITS", (broken, unit))
    with options.override(serial_threshold=7), built_ahead():
        assert begun.wait(10)
        is_captured.set()
    assert built == [7]


def test_the_shared_units_load():
    with built_ahead():
        pass
    assert all(unit() is not None for unit in build_ahead.UNITS)


def test_nothing_is_built_without_a_compiler(monkeypatch):
    built = []
    monkeypatch.setattr(build_ahead, "UNITS", (lambda: built.append(1),))
    with options.override(compiler="no-such-compiler"), built_ahead():
        pass
    assert not built
