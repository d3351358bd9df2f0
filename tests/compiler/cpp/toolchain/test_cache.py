"""The kernel cache: contents, concurrency and failures."""

import errno
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparsify.compiler.cpp.toolchain import cache, cache_directory
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import CacheError
from sparsify.options import Options, override
from tests.compiler.cpp.tiny_kernels import ask, compiler, constant, result, runs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fresh process state without kernels, an empty cache in `folder/cache`, and a compiler that logs its runs."""
    forget(monkeypatch)
    monkeypatch.setattr(cache_directory, "_given_up", {})
    with override(cache_dir=tmp_path / "cache", compiler=str(compiler(tmp_path))):
        yield tmp_path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, no kernel is in memory."""
    monkeypatch.setattr(cache, "_memory", cache._Memory())


def wait_for(happened: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_compiled_then_memory_then_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = library(constant(5)), library(constant(5))
    forget(monkeypatch)
    third = library(constant(5))
    assert [made.origin for made in (first, second, third)] == ["compiled", "memory", "disk"]
    assert [result(made) for made in (first, second, third)] == [5, 5, 5]
    assert str(third) == f"kernel disk key={third.key[:12]}"
    assert str(first).startswith("kernel compiled in ")


def test_key_is_made_of_everything_that_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        library(constant(5)).key,
        library(constant(6)).key,
        library(constant(5), {"schedule": "order i"}).key,
    ]
    with override(compiler_flags=("-O1",)):
        keys.append(library(constant(5)).key)
    with override(compiler=str(compiler(folder, name="other"))):
        keys.append(library(constant(5)).key)
    monkeypatch.setattr(cache.target, "cpu_digest", lambda: "another CPU")
    keys.append(library(constant(5)).key)
    monkeypatch.setattr("sparsify.__version__", "99")
    keys.append(library(constant(5)).key)
    assert len(set(keys)) == 7


def test_description_says_what_the_kernel_is(folder: Path) -> None:
    made = library(constant(5), {"schedule": "order i"})
    described = json.loads(made.path.with_suffix(".json").read_text())
    assert described["source"] == constant(5)
    assert described["parts"]["kernel schedule"] == "order i"
    assert described["parts"]["compiler"] == "script 1"


def test_directory_is_closed_to_others(folder: Path) -> None:
    library(constant(5))
    directory = folder / "cache" / "kernels"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert cache_directory.is_trusted(directory)


def damage_code(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage_description(path: Path) -> None:
    path.with_suffix(".json").write_text("{")


def lose_description(path: Path) -> None:
    path.with_suffix(".json").unlink()


def lose_code(path: Path) -> None:
    path.unlink()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", [damage_code, damage_description, lose_description, lose_code])
def test_damaged_kernel_is_built_again(
    damage: Callable[[Path], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Damage replaces the file: the code that this process has mapped stays whole.
    path = library(constant(5)).path
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    damage(path)
    forget(monkeypatch)
    made = library(constant(5))
    assert (made.origin, result(made)) == ("compiled", 5)


def test_threads_of_one_process_compile_once(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        options = cache.current()
        made = list(pool.map(lambda _: library(constant(5), {}, options), range(16)))
    assert len(runs(folder)) == 1
    assert {result(one) for one in made} == {5}


@pytest.mark.sampled(3)
def test_two_processes_compile_once(folder: Path) -> None:
    slow = compiler(folder, "sleep 0.5")
    other = ask(constant(5), folder / "cache", slow)
    wait_for(lambda: runs(folder))
    with override(compiler=str(slow)):
        mine = library(constant(5))
    out, _ = other.communicate(timeout=60)
    assert out == "compiled 5\n"
    assert (mine.origin, result(mine)) == ("disk", 5)
    # The other one is that of the trampoline, with which a kernel is called.
    assert len(runs(folder)) == len(list((folder / "cache" / "kernels").glob("*.so")))


@pytest.mark.sampled(2)
def test_process_killed_while_compiling(folder: Path) -> None:
    cxx = compiler(folder, f"[ -e {folder}/slow ] && sleep 60")
    (folder / "slow").touch()
    other = ask(constant(5), folder / "cache", cxx)
    wait_for(lambda: runs(folder))
    other.kill()
    other.wait()
    (folder / "slow").unlink()
    try:
        started = time.perf_counter()
        made = library(constant(5))
        assert time.perf_counter() - started < 10
        assert (made.origin, result(made)) == ("compiled", 5)
    finally:
        os.killpg(runs(folder)[0], signal.SIGKILL)
        other.stdout.close()  # type: ignore[union-attr]


def test_who_waits_too_long_compiles_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PATIENCE_SECONDS", 0.0)
    key = library(constant(5)).key
    cache_directory.clean()
    forget(monkeypatch)
    held = cache.lock_file(folder / "cache" / "kernels", key)
    with cache.filelock.FileLock(str(held)), override(compiler_timeout=1.0):
        made = library(constant(5))
    assert (made.origin, result(made)) == ("compiled", 5)


def test_what_killed_processes_left_is_removed(folder: Path) -> None:
    directory = folder / "cache" / "kernels"
    for name, age in (("build-old", 2 * cache_directory.ABANDONED_SECONDS), ("build-new", 0.0)):
        (directory / name).mkdir(parents=True)
        os.utime(directory / name, (time.time() - age,) * 2)
    library(constant(5))
    assert [path.name for path in directory.glob("build-*")] == ["build-new"]


def test_home_that_cannot_be_written(folder: Path) -> None:
    (folder / "home").write_text("a file, where no directory can be made")
    with override(cache_dir=folder / "home" / "cache"):
        with pytest.warns(
            RuntimeWarning, match=r"kernel cache .*home/cache/kernels cannot be used .*SPARSIFY_CACHE_DIR"
        ):
            first = library(constant(5))
        # Said once; a warning is an error here.
        second = library(constant(6))
    assert (result(first), result(second)) == (5, 6)
    assert [made.path.parent for made in (first, second)] == [cache_directory._temporary(None)] * 2


@pytest.mark.skipif(os.getuid() == 0, reason="the system's owner may write everywhere")
def test_home_without_permission(folder: Path) -> None:
    (folder / "home").mkdir(mode=0o500)
    with override(cache_dir=folder / "home"), pytest.warns(RuntimeWarning, match="cannot be used"):
        assert result(library(constant(5))) == 5


def test_kernels_of_a_directory_that_can_only_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(constant(5))
    forget(monkeypatch)
    cache_directory._given_up[folder / "cache" / "kernels"] = "read-only"
    made = library(constant(5))
    assert (made.origin, result(made)) == ("disk", 5)


def test_directory_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cache" / "kernels").mkdir(parents=True)
    monkeypatch.setattr(cache_directory.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache_directory.prepare(folder / "cache" / "kernels")


def test_disk_full_for_the_compiler(folder: Path) -> None:
    full = (
        f'case "$*" in *{folder}/cache*) echo "ld: final link failed: No space left on device"; exit 1;; esac'
    )
    cxx = compiler(folder, full)
    with override(compiler=str(cxx)), pytest.warns(RuntimeWarning, match="No space left on device"):
        made = library(constant(5))
    assert (made.origin, result(made)) == ("compiled", 5)
    assert not list((folder / "cache" / "kernels").glob("build-*"))


@pytest.mark.sampled(2)
def test_disk_full_for_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.is_relative_to(folder / "cache"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        made = library(constant(5))
    assert (made.origin, result(made)) == ("compiled", 5)


def test_no_directory_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **named: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    said = pytest.warns(RuntimeWarning, match="cannot be used")
    with said as warnings, pytest.raises(CacheError, match=r"no directory can hold .* free some disk space"):
        library(constant(5))
    assert len(warnings) == 1


def test_size_prune_clean(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = library(constant(5)), library(constant(6))
    os.utime(first.path, (1, 1))
    kernels, total = cache_directory.cache_size()
    assert kernels == 2
    assert total == sum(path.stat().st_size for path in first.path.parent.glob("*.*") if path.is_file())
    assert cache_directory.prune(total // 2 + 100) == 1
    assert not first.path.exists()
    assert second.path.exists()
    assert cache_directory.clean() == 1
    assert cache_directory.cache_size() == (0, 0)
    forget(monkeypatch)
    assert library(constant(6)).origin == "compiled"


def test_others_remove_files_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = library(constant(5)), library(constant(6))
    work = gone.path.parent / "build-other"
    work.mkdir()
    (work / "unit.cpp").touch()
    walk, status = os.walk, cache_directory._status

    def removing(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(top):
            shutil.rmtree(work, ignore_errors=True)  # its folder is known already, and looked into next
            yield found

    def vanishing(path: Path) -> os.stat_result | None:
        gone.path.unlink(missing_ok=True)
        return status(path)

    monkeypatch.setattr(os, "walk", removing)
    monkeypatch.setattr(cache_directory, "_status", vanishing)
    assert cache_directory.cache_size()[0] == 1
    assert cache_directory.prune(0) == 1
    assert not kept.path.exists()


def test_use_protects_from_pruning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = library(constant(5)), library(constant(6))
    for made in (first, second):
        os.utime(made.path, (1, 1))
    forget(monkeypatch)
    library(constant(5))
    cache_directory.prune(cache_directory.cache_size()[1] // 2 + 100)
    assert first.path.exists()
    assert not second.path.exists()


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory.cache_dir(Options()) == tmp_path / "sparsify" / "kernels"


@pytest.mark.bench
def test_time_to_load_from_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(constant(5))
    seconds = []
    for _ in range(9):
        forget(monkeypatch)
        started = time.perf_counter()
        assert library(constant(5)).origin == "disk"
        seconds.append(time.perf_counter() - started)
    assert sorted(seconds)[4] < 0.005


def test_sources_are_generated_for_new_kernels_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def generate() -> cache.Generated:
        asked.append(1)
        return cache.Generated(constant(8), {"sizes": ["n"]})

    first = library(generate, {"program": "eight"})
    forget(monkeypatch)
    second = library(generate, {"program": "eight"})
    assert (first.origin, second.origin, asked) == ("compiled", "disk", [1])
    assert first.notes == second.notes == {"sizes": ["n"]}
    assert result(second) == 8
    assert library(generate, {"program": "nine"}).origin == "compiled"
