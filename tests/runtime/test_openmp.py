"""The OpenMP runtime: found under any name, the one of torch among several."""

from pathlib import Path

import pytest
import torch

from sparsify.errors import CompilerError
from sparsify.runtime import openmp

TORCH = str(Path(torch.__file__).parent)


def test_runtime_of_torch() -> None:
    assert openmp.path().is_file()
    assert str(openmp.path()) in openmp.loaded()


@pytest.mark.parametrize(
    "name, is_runtime",
    [
        ("/usr/lib/libgomp.so.1", True),
        ("/site/torch.libs/libgomp-a34b3233.so.1.0.0", True),
        ("/conda/lib/libiomp5.so", True),
        ("/usr/lib/llvm-14/lib/libomp.so.5", True),
        ("/usr/lib/libomptarget.so", False),
        ("/usr/lib/libcomposite.so", False),
    ],
)
def test_names_of_runtimes(name: str, is_runtime: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"7f00-7f01 r-xp 00000000 fe:00 123    {name}\n"
    monkeypatch.setattr(Path, "read_text", lambda path: line)
    assert openmp.loaded() == ([name] if is_runtime else [])


def test_that_of_torch_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = f"{TORCH}.libs/libgomp-a34b3233.so.1"
    monkeypatch.setattr(openmp, "loaded", lambda: ["/a/lib/libomp.so", renamed])
    assert openmp.path.__wrapped__() == Path(renamed)


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "loaded", list)
    beside = openmp._bundled_with_torch()
    if not beside:
        pytest.skip("this build of torch carries no OpenMP runtime of its own")
    assert str(openmp.path.__wrapped__()) in beside


def test_torch_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "loaded", list)
    monkeypatch.setattr(openmp, "_bundled_with_torch", list)
    with pytest.raises(CompilerError, match="torch has not loaded an OpenMP runtime"):
        openmp.path.__wrapped__()
