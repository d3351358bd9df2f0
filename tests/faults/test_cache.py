"""Attacks on the kernel cache and damage to it: the right result, and one warning where the cache is not used."""

import errno
import json
import os
import shutil
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain import cache, cache_directory, records, trust
from sparsify.compiler.cpp.toolchain.cache import Library, library
from sparsify.compiler.einsum.text.serialize import CLASSES
from sparsify.compiler.kernel import decision_cache
from sparsify.compiler.schedule.sizes import UNKNOWN
from sparsify.errors import BuildError, CacheError
from sparsify.options import current, override
from tests.compiler.cpp.tiny_kernels import constant

IS_ROOT = os.getuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root may give files away")
STRANGER = 12345


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of kernels of a process that knows none; it does not exist yet."""
    forget(monkeypatch)
    for name in ("_given_up", "_pauses"):
        monkeypatch.setattr(cache_directory, name, {})
    with override(cache_dir=tmp_path / "cache", compiler_flags=("-O0",)):
        yield tmp_path / "cache" / "kernels"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, no kernel is in memory."""
    monkeypatch.setattr(cache, "_memory", cache._Memory())


def value(made: Library) -> int:
    """What a kernel writes into its only buffer."""
    buffer = torch.zeros(1, dtype=torch.int64)
    foreign_call._bind_ctypes(made.address)((), (buffer,), 1, None)
    return int(buffer.item())


def plant(victim: int, number: int) -> Path:
    """Puts another kernel in the place of one that does not exist yet, with a checksum that fits."""
    made = library(constant(number))
    key = cache._request(constant(victim), {}, current(), cache.SYMBOL).key
    code, place = made.path.read_bytes(), made.path.with_stem(key)
    description = json.loads(made.path.with_suffix(".json").read_text())
    description.pop("checksum")
    checksum = cache._checksum(key, code, description)
    trust.write(place, code)
    trust.write(place.with_suffix(".json"), json.dumps({"checksum": checksum} | description).encode())
    return place


def test_planted_kernel_is_loaded_where_nothing_prevents_it(kernels: Path) -> None:
    """Those of the next tests are as good."""
    place = plant(5, 666)
    made = library(constant(5))
    assert (made.origin, made.path, value(made)) == ("disk", place, 666)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702], ids="{:o}".format)
def test_directory_that_others_can_write_to(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(trust, "_is_private", lambda group: False)
    plant(5, 666)
    asked = decision_cache.recall("question", UNKNOWN, lambda: ("planted",), current())
    kernels.chmod(mode)
    before = sorted(kernels.rglob("*"))
    forget(monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"others can write to .*kernels \(mode \d+\).*clean") as said:
        made = [library(constant(5)), library(constant(6))]
    assert len(said) == 1
    assert [value(one) for one in made] == [5, 6]
    assert not any(one.path.is_relative_to(kernels) for one in made)
    assert decision_cache.recall("question", UNKNOWN, lambda: ("found",), current()) == ("found",) != asked
    assert stat.S_IMODE(kernels.stat().st_mode) == mode
    assert sorted(kernels.rglob("*")) == before


def test_cleaning_makes_a_refused_directory_usable_and_keeps_other_files(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(constant(5))
    kernels.chmod(0o777)
    (kernels / "thesis.txt").write_text("not a kernel")
    assert cache_directory.clean() == 1
    assert [path.name for path in kernels.iterdir()] == ["thesis.txt"]
    (kernels / "thesis.txt").unlink()
    assert cache_directory.clean() == 0
    assert not kernels.exists()
    forget(monkeypatch)
    assert library(constant(5)).path.parent == kernels
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o700


def test_parent_that_others_can_write_to(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(constant(5))
    for mode, is_used in ((0o777, False), (0o1777, True), (0o755, True)):
        kernels.parent.chmod(mode)
        assert cache_directory.is_trusted(kernels) == is_used
    kernels.parent.chmod(0o777)
    forget(monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"others can write to .*cache \(mode 0777\)"):
        assert not library(constant(5)).path.is_relative_to(kernels)


def test_link_on_the_way_leads_to_a_directory_that_others_can_write_to(kernels: Path, tmp_path: Path) -> None:
    (tmp_path / "open" / "elsewhere" / "kernels").mkdir(parents=True, mode=0o700)
    kernels.parent.symlink_to("open/./../open/elsewhere")
    assert cache_directory.is_trusted(kernels)
    (tmp_path / "open").chmod(0o777)
    assert not cache_directory.is_trusted(kernels)
    (tmp_path / "open").chmod(0o700)
    if IS_ROOT:
        os.lchown(kernels.parent, STRANGER, STRANGER)
        assert not cache_directory.is_trusted(kernels)


def test_links_in_a_circle(kernels: Path) -> None:
    kernels.parent.symlink_to(kernels.parent)
    assert not cache_directory.is_trusted(kernels)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert value(library(constant(5))) == 5


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def link_hard(path: Path) -> None:
    os.link(path, path.parent.parent / path.name)


def link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_a_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nest(path: Path) -> None:
    path.write_text("[" * 100_000)


ATTACKS = [
    open_to_all,
    pytest.param(give_away, marks=needs_root),
    link_hard,
    link,
    make_a_pipe,
    make_a_folder,
    empty,
    nest,
]


@pytest.mark.parametrize("suffix", [".so", ".json"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_file_that_cannot_be_trusted_is_made_anew(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], None], suffix: str
) -> None:
    place = plant(5, 666)
    attack(place.with_suffix(suffix))
    for origin in ("compiled", "disk"):
        made = library(constant(5))
        assert (made.origin, value(made), made.path) == (origin, 5, place)
        forget(monkeypatch)


@pytest.mark.parametrize("attack", ATTACKS)
def test_record_that_cannot_be_trusted_is_made_anew(kernels: Path, attack: Callable[[Path], None]) -> None:
    decision_cache.recall("question", UNKNOWN, lambda: ("planted",), current())
    (path,) = kernels.glob("*.plan")
    attack(path)
    answers = iter([("found",), ("not asked",)])
    for _ in range(2):
        assert decision_cache.recall("question", UNKNOWN, lambda: next(answers), current()) == ("found",)


def test_kernels_with_exchanged_names(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = plant(5, 5000), plant(6, 6000)
    for suffix in (".so", ".json"):
        one, other = first.with_suffix(suffix), second.with_suffix(suffix)
        one.rename(kernels / "between")
        other.rename(one)
        (kernels / "between").rename(other)
    forget(monkeypatch)
    assert [value(library(constant(number))) for number in (5, 6)] == [5, 6]


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_each_flipped_bit_is_found(kernels: Path, suffix: str) -> None:
    made = library(lambda: cache.Generated(constant(5), {"sizes": ["n"]}), {"program": "five"})
    request = cache._request(lambda: cache.Generated(""), {"program": "five"}, current(), cache.SYMBOL)
    assert request.key == made.key
    path = made.path.with_suffix(suffix)
    content = path.read_bytes()
    path.unlink()  # the code that this process has mapped stays whole
    places = range(0, len(content), max(1, len(content) // 300))
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        trust.write(path, bytes(damaged))
        assert cache._load(request, kernels) is None, place
    trust.write(path, content)
    assert cache._load(request, kernels) is not None


def test_records_run_nothing(kernels: Path, tmp_path: Path) -> None:
    decision_cache.recall("question", UNKNOWN, lambda: ("asked",), current())
    (path,) = kernels.glob("*.plan")
    ((sizes, _),) = json.loads(records.read(path)).items()
    texts = (
        f"__import__('os').mkdir({str(tmp_path / 'run')!r})",
        "Path('/')",
        "Const.__class__",
        "Const(value=1).__init__",
        "[].append",
        "1 if 1 else 2",
        "(" * 5000,
        "Const()",
        "\0",
        "Format('nonsense')",
    )
    for text in texts:
        records.write(path, json.dumps({sizes: text}), current())
        assert decision_cache.recall("question", UNKNOWN, lambda: ("asked",), current()) == ("asked",), text
    assert not (tmp_path / "run").exists()
    assert "Path" not in CLASSES


@pytest.mark.parametrize("content", ["null", "[]", '{"a": 1}', '"', "{"])
def test_records_of_another_kind(kernels: Path, content: str) -> None:
    decision_cache.recall("question", UNKNOWN, lambda: ("asked",), current())
    (path,) = kernels.glob("*.plan")
    records.write(path, content, current())
    assert decision_cache.recall("question", UNKNOWN, lambda: ("again",), current()) == ("again",)


@needs_root
def test_kernels_of_root_are_used_and_stay_as_they_are(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(constant(5))
    before = sorted(kernels.rglob("*"))
    forget(monkeypatch)
    monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    assert library(constant(5)).origin == "disk"
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache_directory.prepare(kernels)
    assert sorted(kernels.rglob("*")) == before


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o777])
def test_mask_of_the_process(kernels: Path, monkeypatch: pytest.MonkeyPatch, mask: int) -> None:
    before = os.umask(mask)
    try:
        library(constant(5))
        decision_cache.recall("question", UNKNOWN, lambda: ("asked",), current())
        found = [path for path in kernels.parent.rglob("*") if path.parent.name != cache_directory.LOCKS]
    finally:
        os.umask(before)
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert modes == {"": 0o700, ".so": 0o600, ".json": 0o600, ".plan": 0o600}
    forget(monkeypatch)
    assert library(constant(5)).origin == "disk"


NAMES = [
    "-x",
    "$ORIGIN",
    "${LIB}",
    "@file",
    "a b",
    "line\nbreak",
    "quote'\"`",
    "back\\slash",
    "ü,:;",
    "n" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_the_directory(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with override(cache_dir=Path(name)):
        made = library(constant(5))
        assert (made.origin, value(made)) == ("compiled", 5)
        assert made.path.parent == tmp_path / name / "kernels"
        forget(monkeypatch)
        monkeypatch.chdir("/")
    with override(cache_dir=tmp_path / name):
        assert (library(constant(5)).origin, value(library(constant(5)))) == ("disk", 5)


def test_name_that_is_too_long(kernels: Path) -> None:
    with (
        override(cache_dir=Path("/".join(["n" * 200] * 30))),
        pytest.warns(RuntimeWarning, match="name too long"),
    ):
        assert value(library(constant(5))) == 5


def test_fault_that_passes(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, faults = os.replace, iter([errno.ENOSPC])

    def failing(source: Path, target: Path) -> None:
        if Path(target).is_relative_to(kernels) and (number := next(faults, 0)):
            raise OSError(number, os.strerror(number))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        first = library(constant(5))
    second = library(constant(6))
    assert [value(first), value(second)] == [5, 6]
    assert [made.path.parent == kernels for made in (first, second)] == [False, True]
    assert not cache_directory._given_up


def test_fault_that_stays_is_not_met_for_each_kernel(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def failing(directory: Path) -> None:
        tried.append(directory)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(trust, "make", failing)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2000):
            clock[0] += 1.0
            with pytest.raises(OSError, match="Input/output"):
                cache_directory.prepare(kernels)
            cache_directory.give_up(kernels, "Input/output error", current())
    assert len(said) == 1
    assert 30 < len(tried) < 60  # after the first minutes, once a minute


def test_size_stays_below_the_limit(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    prune = cache_directory.prune_directory

    def noted(directory: Path, size: int) -> tuple[int, int]:
        walks.append(size)
        return prune(directory, size)

    monkeypatch.setattr(cache_directory, "prune_directory", noted)
    first = library(constant(0))
    each = cache_directory.cache_size()[1]
    library(constant(100))
    for number in range(1, 7):
        os.utime(first.path, (time.time() + number, time.time() + number))  # used again and again
        with override(cache_bytes=5 * each):
            library(constant(number))
        assert cache_directory.cache_size()[1] <= 5 * each
    assert first.path.exists()
    assert len(walks) <= 5
    with override(cache_bytes=0):
        assert value(library(constant(9))) == 9
    assert cache_directory.cache_size() == (0, 0)


def test_sources_that_do_not_compile_count(kernels: Path) -> None:
    with override(cache_bytes=1000):
        for number in range(3):
            with pytest.raises(BuildError):
                library(f"no C++ {number}" + " " * 600)
    assert cache_directory.cache_size()[1] <= 1000


def test_dates_in_the_future_are_no_recent_use(kernels: Path) -> None:
    first, second = library(constant(5)), library(constant(6))
    for path in (first.path, first.path.with_suffix(".json")):
        os.utime(path, (time.time() + 1e8, time.time() + 1e8))
    cache_directory.prune(cache_directory.cache_size()[1] // 2 + 100)
    assert [made.path.exists() for made in (first, second)] == [False, True]


def test_unfinished_work_of_a_process_that_runs_is_kept(kernels: Path) -> None:
    library(constant(5))
    names = "build-used", "build-left", "build-file"
    for name in names[:2]:
        (kernels / name).mkdir()
    (kernels / names[2]).touch()
    for name in names:
        os.utime(kernels / name, (time.time() + 1e6, time.time() + 1e6))  # the clock was set back
    in_use = cache_directory.lock(kernels / names[0])
    cache_directory.remove_abandoned(kernels)
    assert [path.name for path in kernels.glob("build-*")] == ["build-used"]
    os.close(in_use)
    cache_directory.remove_abandoned(kernels)
    assert not list(kernels.glob("build-*"))


def test_processes_that_prune_at_once(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(constant(5))
    for number in range(200):
        trust.write(kernels / f"{number:040x}.plan", b"x" * 100)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(partial(cache_directory.prune_directory, kernels), [5000, 10_000, 4000, 0]))
    assert min(kept for _, kept in found) == 0
    assert cache_directory.cache_size() == (0, 0)
    forget(monkeypatch)
    assert value(library(constant(5))) == 5


def test_child_leaves_the_temporary_directory_of_its_parent(kernels: Path) -> None:
    place = cache_directory.process_directory()
    child = os.fork()
    if child == 0:
        is_other = cache_directory.process_directory() != place
        for holder in cache_directory._holders.values():
            holder.cleanup()
        os._exit(not is_other)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert place.is_dir()
    shutil.rmtree(place)  # as programs do that clean up /tmp
    assert cache_directory.process_directory().is_dir()


def test_locks_and_failures_that_are_files(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(constant(5))
    cache_directory.clean()
    shutil.rmtree(kernels / cache_directory.LOCKS)
    (kernels / cache_directory.LOCKS).write_text("in the way")
    (kernels / cache_directory.FAILED).write_text("in the way")
    forget(monkeypatch)
    made = library(constant(5))
    assert (value(made), made.path.parent) == (5, kernels)
    with pytest.raises(BuildError):
        library("no C++")


def test_process_with_too_many_kernels(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.most_libraries() > 5000
    before = len(Path("/proc/self/maps").read_text().splitlines())
    library(constant(1))
    after = len(Path("/proc/self/maps").read_text().splitlines())
    assert after - before <= cache.MAPS_OF_A_LIBRARY + 1  # memory of Python itself may grow
    monkeypatch.setattr(cache, "most_libraries", lambda: 2)
    library(constant(2))
    with pytest.raises(
        CacheError, match="has loaded 2 kernels, as many as it has room for; start another process"
    ):
        library(constant(3))
    assert library(constant(1)).origin == "memory"
