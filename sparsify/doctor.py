"""A check of the machine: versions, compiler, cache, and one kernel built and checked.

In: nothing. Out: `environment()`, a mapping of facts, and `diagnose()`, as
`(Finding("compiler", True, "/usr/bin/g++ (g++ 12.2.0)"), ...)`.
"""

import importlib.util
import os
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import sparsify
from sparsify import options
from sparsify.compiler import calibrate
from sparsify.compiler.cpp.toolchain import cache_directory, target
from sparsify.compiler.cpp.toolchain.build import find_compiler
from sparsify.errors import CompilerNotFoundError, SparsifyError
from sparsify.providers import require_sole_provider
from sparsify.runtime import openmp
from sparsify.runtime.machine import machine

EXTRAS: Final = {
    "graph": ("torch_geometric",),
    "text": ("transformers",),
    "vision": ("torchvision",),
    "plot": ("matplotlib",),
    "scale": ("pymetis",),
}
SHOWN_INSTRUCTIONS: Final = (
    "sse2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_bf16",
    "amx_tile",
    "asimd",
    "sve",
)
TOLERANCE: Final = 1e-5
LOST: Final = (
    "without one no kernels are built: einsum, evaluate and applied models run by torch's operators. Results and "
    "gradients are the same; calls take up to 1000 times as long, and nothing is tuned or compared with other libraries"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        name: name of the check.
        ok: whether the check passed.
        text: details found.
        remedy: remedy for a failure, "" when nothing is to be done.
        required: whether sparsify needs the checked part.
    """

    name: str
    ok: bool
    text: str
    remedy: str = ""
    required: bool = True

    def __str__(self) -> str:
        sign = "ok     " if self.ok else "MISSING" if self.required else "-      "
        return f"{sign} {self.name}: {self.text}" + (f"\n        {self.remedy}" if self.remedy else "")


def environment() -> dict[str, Any]:
    """Facts for readers of a bug report or a measurement."""
    chosen = options.current()
    return {
        **machine(),
        "vector_bytes": target.vector_bytes(chosen),
        "instructions": " ".join(name for name in SHOWN_INSTRUCTIONS if target.has(name)),
        "compiler": told(lambda: str(find_compiler(chosen))),
        "compiler_flags": " ".join(target.flags(chosen)),
        "openmp": told(lambda: str(openmp.path())),
        "cache": str(cache_directory.cache_dir(chosen)),
        **calibrate.summary(calibrate.cached_machine(chosen)),
    }


def told(ask: Callable[[], str]) -> str:
    """The answer, or the message of the error."""
    try:
        return ask()
    except SparsifyError as error:
        return error.message


def diagnose() -> tuple[Finding, ...]:
    """All findings; a failed check does not stop the others."""
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: sys.version.split()[0],
        "torch": lambda: f"{torch.__version__}, {torch.get_num_threads()} threads",
        "package": package,
        "compiler": compiler,
        "openmp": lambda: str(openmp.path()),
        "cache": writable_cache,
        "kernel": checked_kernel,
        "without kernels": checked_reference,
        "gloo": exchanged_by_gloo,
        "machine": measured_machine,
    }
    return (*(checked(name, check) for name, check in checks.items()), *(extra(name) for name in EXTRAS))


def is_healthy(findings: tuple[Finding, ...]) -> bool:
    """Whether all required checks passed."""
    return all(finding.ok for finding in findings if finding.required)


def checked(name: str, check: Callable[[], str]) -> Finding:
    """The finding of a check; an exception becomes a failed finding."""
    try:
        return Finding(name, True, check())
    except SparsifyError as error:
        return Finding(
            name, False, getattr(error, "message", str(error)).strip(), getattr(error, "remedy", "")
        )
    except Exception as error:  # a doctor names whatever is wrong, and goes on
        return Finding(
            name, False, f"{type(error).__name__}: {error}", "report it with what `sparsify env` prints"
        )


def package() -> str:
    """Location of the imported sparsify; raises if another distribution provides the name."""
    require_sole_provider()
    return f"sparsify {sparsify.__version__} in {Path(sparsify.__file__).parent}"


def compiler() -> str:
    """The C++ compiler; without one, raises with a note on the consequences."""
    try:
        return str(find_compiler(options.current()))
    except CompilerNotFoundError as error:
        raise CompilerNotFoundError(f"{error.message}\n        {LOST}", error.remedy) from None


def writable_cache() -> str:
    """The cache directory and a summary of its content; raises if not writable."""
    place = cache_directory.cache_dir()
    try:
        cache_directory.prepare(place)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        raise SparsifyError(
            f"{place} cannot be written to: {error.strerror or error}",
            f"{cache_directory.remedy(place)} or set SPARSIFY_CACHE_DIR to another directory",
        ) from None
    kernels, total = cache_directory.cache_size()
    limit = options.current().cache_bytes
    return f"{place}, {kernels} kernels, {total / 2**20:.1f} MiB of at most {limit / 2**20:.0f} MiB"


def checked_kernel() -> str:
    """Time of a sparse product from text to result, checked against torch's result."""
    with (
        tempfile.TemporaryDirectory(prefix="sparsify-doctor-") as folder,
        options.override(cache_dir=Path(folder), strict=True),
    ):
        seconds, error = checked_product()
    return f"compiled, loaded and checked in {seconds * 1e3:.0f} ms, largest error {error:.1g}"


def checked_reference() -> str:
    """The same product by torch's operators, the fallback without a compiler."""
    with options.override(compiler="no compiler, on purpose"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        _, error = checked_product()
    return f"torch's operators compute where no kernel can be built, largest error {error:.1g}"


def checked_product() -> tuple[float, float]:
    """The seconds of a sparse product, and the largest difference from torch's result.

    Raises:
        SparsifyError: the results differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(64, 48, generator=generator)
    dense = torch.where(dense > 0.9, dense, 0)
    other = torch.rand(48, 24, generator=generator)
    started = time.perf_counter()
    found = sparsify.einsum("ij,jk->ik", sparsify.tensor(dense, "csr"), other)
    seconds = time.perf_counter() - started
    error = (found - dense @ other).abs().max().item()
    if error > TOLERANCE:
        raise SparsifyError(
            f"a sparse product differs from torch's by {error:.3g}",
            "try SPARSIFY_VECTOR_BYTES=0 or another compiler (SPARSIFY_CXX), and report it with `sparsify env`",
        )
    return seconds, error


def exchanged_by_gloo() -> str:
    """Checks the all-reduce of torch.distributed over gloo (used by sharded graphs), and names the interface."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise SparsifyError(
            "this torch has no gloo", "sparsify.shard needs a build of torch with distributed"
        )
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    names = [name for _, name in socket.if_nameindex()]
    if interface and not set(interface.split(",")) <= set(names):
        raise SparsifyError(
            f"GLOO_SOCKET_IFNAME is {interface}, and the interfaces are {', '.join(names)}",
            "name one of these",
        )
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        try:
            dist.all_reduce(torch.ones(1))
        finally:
            dist.destroy_process_group()
    chosen = (
        f"GLOO_SOCKET_IFNAME is {interface}" if interface else "GLOO_SOCKET_IFNAME names one between machines"
    )
    return f"works; interfaces {', '.join(names)}; {chosen}"


def measured_machine() -> str:
    """The measured rates of the machine, measured now if need be."""
    settings = options.current()
    if settings.tune_seconds == 0:
        return "nothing is measured where SPARSIFY_TUNE_SECONDS is 0"
    facts = calibrate.summary(calibrate.measured(settings))
    return "\n".join(f"        {name}: {text}" for name, text in facts.items()).strip()


def extra(name: str) -> Finding:
    """Whether the packages of an extra are installed."""
    missing = [module for module in EXTRAS[name] if importlib.util.find_spec(module) is None]
    if not missing:
        return Finding(f"extra {name}", True, f"{' and '.join(EXTRAS[name])} installed", required=False)
    remedy = f"pip install 'sparsify-fx[{name}]'"
    return Finding(f"extra {name}", False, f"{' and '.join(missing)} not installed", remedy, required=False)
