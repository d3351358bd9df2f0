"""Threads pinned to cores, and what a reader must know of the machine to judge a timing.

In: nothing. Out: `GOMP_CPU_AFFINITY` set before torch is loaded, and
`{"cpu": "AMD EPYC", "l2_kib": 512, "affinity": "0 1", "compiler": "g++ 12.2", ...}`.
"""

import os
import sys
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# The cores of the process, before OpenMP pins the thread that loads torch.
CORES = frozenset(os.sched_getaffinity(0))


def pin_threads(threads: int | None = None) -> None:
    """One OpenMP thread a core, each on its own; without this both may share a core and wait for each other.

    Args:
        threads: how many; `None` for `OMP_NUM_THREADS`, else one a core. A single one may run on any core.

    The OpenMP runtime reads these variables when it is loaded: call this before torch is imported.
    """
    assert "torch" not in sys.modules, "torch has loaded its OpenMP runtime already"
    cores = sorted(os.sched_getaffinity(0))
    count = threads or int(os.environ.get("OMP_NUM_THREADS", len(cores)))
    os.environ["OMP_NUM_THREADS"] = str(count)
    if count > 1 and "OMP_PROC_BIND" not in os.environ:
        os.environ.setdefault("GOMP_CPU_AFFINITY", " ".join(map(str, cores[:count])))


def facts() -> dict[str, str | int | float]:
    """The machine, its caches, the threads and the versions."""
    from sparsify.compiler.cpp.toolchain import build, target
    from sparsify.options import current
    from sparsify.runtime.machine import machine

    return {
        **machine(),
        **cache_sizes(),
        "cores": len(os.sched_getaffinity(0)),
        "vector_bytes": target.vector_bytes(current()),
        "affinity": os.environ.get("GOMP_CPU_AFFINITY", os.environ.get("OMP_PROC_BIND", "")),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
        "compiler": build.find_compiler(current()).version,
        "load_average": os.getloadavg()[0],
    }


def cache_sizes() -> dict[str, int]:
    """The sizes of the data caches as one core sees them, in KiB."""
    found = {}
    for place in sorted(CACHES.glob("index*")):
        if (place / "type").read_text().strip() != "Instruction":
            level, size = (place / "level").read_text().strip(), (place / "size").read_text().strip()
            found[f"l{level}_kib"] = int(size.removesuffix("K"))
    return found
