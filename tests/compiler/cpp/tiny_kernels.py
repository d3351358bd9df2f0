"""Kernels of a few lines, compilers as scripts, and Python programs that request a kernel."""

import subprocess
import sys
from pathlib import Path

import torch

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain.cache import Library

CONTEXT = """\
typedef __INT64_TYPE__ int64_t;
struct Context { int64_t threads; void *state; void *(*allocate)(void *, int64_t, int64_t); };
"""


def kernel(body: str, before: str = "") -> str:
    """Translation unit of a kernel; its arrays are `sizes` and `buffers`."""
    return (
        f"{CONTEXT}{before}\n"
        'extern "C" int64_t sparsify_kernel'
        "(const int64_t *sizes, void *const *buffers, const Context *context) {\n"
        f"  {body}\n  return 0;\n}}\n"
    )


def constant(value: int) -> str:
    """Kernel that writes `value` into its only buffer."""
    return kernel(f"*(int64_t *)buffers[0] = {value};")


def result(library: Library) -> int:
    """Contents of a kernel's only buffer after a call."""
    buffer = torch.zeros(1, dtype=torch.int64)
    foreign_call.call(library, (), (buffer,), 1)
    return int(buffer.item())


def compiler(folder: Path, lines: str = "", name: str = "cxx") -> Path:
    """Compiler script that logs each run in `folder/log`, runs `lines` of shell, then calls g++."""
    path = folder / name
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && {{ echo "script 1"; exit 0; }}\n'
        f"echo $$ >> {folder}/log\n{lines}\n"
        'exec g++ "$@"\n'
    )
    path.chmod(0o755)
    return path


def runs(folder: Path) -> list[int]:
    """Process numbers of the runs logged by a script."""
    log = folder / "log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def ask(source: str, cache_dir: Path, cxx: Path) -> subprocess.Popen[str]:
    """Starts another process that requests a kernel and prints its origin and result."""
    program = (
        "import sys; from pathlib import Path; from sparsify.options import override\n"
        "from sparsify.compiler.cpp.toolchain.cache import library\n"
        "from tests.compiler.cpp.tiny_kernels import result\n"
        "with override(cache_dir=Path(sys.argv[2]), compiler=sys.argv[3]):\n"
        "    made = library(sys.argv[1]); print(made.origin, result(made))\n"
    )
    line = [sys.executable, "-c", program, source, str(cache_dir), str(cxx)]
    root = Path(__file__).parents[3]
    return subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
