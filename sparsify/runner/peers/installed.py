"""Peers: other projects that runs and measurements compare with if installed; optional for sparsify.

In: `load("OpenVINO")`. Out: the module, or `None`; `reason("OpenVINO")` gives the reason, and the install command.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

# The module of each peer.
MODULES: Final = {
    "PyG": "torch_geometric.nn",
    "pydata/sparse": "sparse",
    "OpenVINO": "openvino",
    "OpenVINO int8": "nncf",
    "ONNX Runtime": "onnxruntime",
    "GraphBLAS": "graphblas",
    "SparseLab": "sparselab",
}
# Further modules needed by a peer.
BESIDE: Final = {"ONNX Runtime": ("onnx", "onnxscript"), "OpenVINO int8": ("openvino",)}
# Package names, for peers with another name on the package index.
PACKAGES: Final = {
    "PyG": "torch-geometric",
    "pydata/sparse": "sparse",
    "ONNX Runtime": "onnxruntime onnx onnxscript",
    "OpenVINO": "openvino",
    "OpenVINO sparse": "openvino",
    "OpenVINO int8": "openvino nncf",
    "GraphBLAS": "python-graphblas",
    "SparseLab": "--no-deps sparselab",
}
# Peers that may hang beside the OpenMP of torch: a product is tried in a subprocess first.
TRIALS: Final = {
    "GraphBLAS": (
        "import numpy, torch, graphblas as gb; torch.ones(512, 512) @ torch.ones(512, 512); "
        "gb.init('suitesparse', blocking=True); n = 20000; places = numpy.arange(10 * n); "
        "A = gb.Matrix.from_coo(places // 10, places * 7919 % n, numpy.ones(10 * n, 'float32'), nrows=n, ncols=n, "
        "dup_op=gb.binary.plus); B = gb.Matrix.from_dense(numpy.ones((n, 8), 'float32')); "
        "A.mxm(B, gb.semiring.plus_times).new().to_dense(0.0)"
    )
}
TRIAL_SECONDS: Final = 60.0
Call = Callable[[], Any]


def load(name: str) -> Any:
    """The module of a peer, `None` if not installed or not runnable on this machine."""
    if (name in TRIALS or name in BESIDE) and reason(name):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts of torch and numpy that are to go
        try:
            return import_module(MODULES[name])
        except ImportError:
            return None


def reason(name: str) -> str:
    """Reason for not measuring a peer: not installed, or the trial in a subprocess failed; "" if runnable.

    >>> reason("no such peer")
    'not installed: pip install no such peer'
    """
    module = MODULES.get(name.removesuffix(" sparse"), name)
    wanted = (module.partition(".")[0], *BESIDE.get(name, ()))
    if any(find_spec(one) is None for one in wanted):
        return f"not installed: pip install {PACKAGES.get(name, name)}"
    return tried(TRIALS[name], TRIAL_SECONDS) if name in TRIALS else ""


@cache
def tried(code: str, seconds: float) -> str:
    """The error of code run in a subprocess with a time limit in seconds; empty for success."""
    command = [sys.executable, "-c", code]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"installed, and a process with a product beside torch did not end within {seconds:g} s"
    if ended.returncode == 0:
        return ""
    last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
    return f"installed, and does not run: {last}"
