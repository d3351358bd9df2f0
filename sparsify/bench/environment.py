"""Threads pinned to cores, and facts on the machine needed to judge a timing.

In: nothing. Out: `GOMP_CPU_AFFINITY` set before torch is loaded, and
`{"cpu": "AMD EPYC", "l2_kib": 512, "affinity": "0 1", "compiler": "g++ 12.2", ...}`.
"""

import os
import sys
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def pin_threads(threads: int | None = None) -> None:
    """Pins one OpenMP thread to each core; unpinned threads may share a core and wait for each other.

    Args:
        threads: number of threads; `None` for `OMP_NUM_THREADS`, else one a core. A single thread is not pinned.

    The OpenMP runtime reads the variables on loading: call `pin_threads` before torch is imported.
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
    """The sizes of one core's data caches in KiB."""
    found = {}
    for place in sorted(CACHES.glob("index*")):
        if (place / "type").read_text().strip() != "Instruction":
            level, size = (place / "level").read_text().strip(), (place / "size").read_text().strip()
            found[f"l{level}_kib"] = int(size.removesuffix("K"))
    return found
