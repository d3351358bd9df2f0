"""Machine of measurements: processor, threads, versions.

In: nothing. Out: `{"cpu": "AMD EPYC 7B13", "threads": 2, "torch": "2.13.0+cpu", ...}`.
"""

import platform
from importlib import metadata
from pathlib import Path

import torch

from sparsify import __version__

INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, str | int]:
    """Machine description printed with measurements: processor, threads, versions."""
    return {
        "cpu": processor(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sparsify": __version__,
        "torch-geometric": version("torch-geometric"),
    }


def processor() -> str:
    """The name of the processor."""
    if INFO.is_file():
        for line in INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def version(distribution: str) -> str:
    """The installed version of a distribution, "" if absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
