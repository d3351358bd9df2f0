"""The one OpenMP runtime of this process: the library loaded by torch.

In: nothing. Out: `path()`, such as `.../torch/lib/libgomp.so.1`; kernels link against this very file.

Two runtimes would mean two thread pools fighting for the same cores, and `torch.set_num_threads` would reach
only one of them. Wheels may carry a renamed copy (`torch.libs/libgomp-a34b3233.so.1`), so the
compiler's own `-lgomp` is not enough.
"""

import re
from functools import cache
from pathlib import Path

import torch

from sparsify.errors import CompilerError

_RUNTIME = re.compile(r"/lib(?:gomp|iomp5|omp)\b[^/]*\.(?:so[.\d]*|dylib)$")


@cache
def path() -> Path:
    """The file of the OpenMP runtime used by torch.

    Raises:
        CompilerError: torch has no OpenMP runtime, so kernels cannot be linked.
    """
    candidates = loaded() or _bundled_with_torch()
    if not candidates:
        raise CompilerError(
            "torch has not loaded an OpenMP runtime (libgomp, libiomp5 or libomp)",
            "install a build of torch with OpenMP: torch.backends.openmp.is_available() must be True",
        )
    root = str(Path(torch.__file__).parent)
    return Path(min(candidates, key=lambda name: (not name.startswith(root), name)))


def loaded() -> list[str]:
    """The files of all OpenMP runtimes mapped into this process; more than one is a mistake."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    names = {line.split(None, 5)[-1] for line in maps.splitlines() if "omp" in line}
    return sorted(name for name in names if _RUNTIME.search(name))


def _bundled_with_torch() -> list[str]:
    """Runtimes shipped in the wheel of torch, for systems without `/proc`."""
    package = Path(torch.__file__).parent
    folders = (package / "lib", package.parent / "torch.libs")
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return sorted(str(file) for file in files if _RUNTIME.search(str(file)))
