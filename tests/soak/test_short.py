"""The short form of each part of `make soak`."""

import pytest

from tests.soak import __main__ as soak
from tests.soak import graphs, memory


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed):
    assert graphs.check(seed) in ("agreed", "refused")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "count"), [("applies", 5), ("shapes", 100), ("einsums", 100)])
def test_memory_is_flat(name, count):
    found = memory.measure(name, count, 10)
    assert memory.is_flat(name, found), found


@pytest.mark.sampled(6)
@pytest.mark.skipif(not soak.has_sanitizers(), reason="g++ has no sanitizers")
def test_sanitizers_find_nothing(capsys):
    assert soak.run("sanitizers", 1, 7), capsys.readouterr().out


def test_growth_is_noticed(monkeypatch):
    held = []

    def leaks():
        while True:
            held.append(bytearray(1 << 20))
            yield

    monkeypatch.setitem(memory.CALLS, "shapes", leaks)
    assert not memory.is_flat("shapes", memory.measure("shapes", 50, 10))


def test_parts_that_fail_are_named(monkeypatch, capsys):
    parts = {
        "good": soak.Part(0.5, lambda *_: ["-c", "print('3 agreed')"]),
        "bad": soak.Part(0.5, lambda seed, _: ["-c", f"raise SystemExit('seed {seed}')"], repeats=True),
    }
    monkeypatch.setattr(soak, "PARTS", parts)
    assert soak.run("good", 1, 7)
    assert not soak.run("bad", 1, 7)
    text = capsys.readouterr().out
    assert "good: passed, 1 runs" in text
    assert "3 agreed" in text
    assert "bad FAILED (1): python -c" in text
    assert "seed 7" in text
