"""Other runtimes for a dense model, where they are installed: in float32, with as many threads as torch.

In: `network(model, x)`. Out: `{"inductor": call, "OpenVINO": call, "ONNX Runtime": None, ...}`: a call by the runtime's
name, `None` where it is missing.
"""

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.bench.environment import CORES
from sparsify.bench.peers import Call, load

# Weights with at least this share of zeros are decompressed as OpenVINO reads them.
SPARSE_WEIGHTS: Final = {"CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": 0.5}
EXPORT_LOGS: Final = "torch.onnx"


def network(model: nn.Module, x: Tensor) -> dict[str, Call | None]:
    """A dense model by inductor with frozen weights, OpenVINO without and with its option for zeros, and ONNX Runtime.

    Args:
        model: in evaluation mode, of one input and one result.
        x: the input of every call.
    """
    return {
        "inductor": inductor(model, x),
        "OpenVINO": openvino(model, x, {}),
        "OpenVINO sparse": openvino(model, x, SPARSE_WEIGHTS),
        "ONNX Runtime": onnx_runtime(model, x),
    }


def inductor(model: nn.Module, x: Tensor) -> Call:
    """`torch.compile` with weights as constants."""
    compiled = torch.compile(model, options={"freezing": True})

    def call() -> Tensor:
        with torch.no_grad():
            found: Tensor = compiled(x)
        return found

    return call


def openvino(model: nn.Module, x: Tensor, settings: dict[str, Any]) -> Call | None:
    """OpenVINO for one call at a time."""
    if (runtime := load("OpenVINO")) is None:
        return None
    wanted = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        **settings,
    }
    converted = runtime.convert_model(model, example_input=x)
    given = x.numpy()

    def call() -> Any:
        return request.infer(given, share_inputs=True, share_outputs=True)[0]

    with on_all_cores():
        request = runtime.Core().compile_model(converted, "CPU", wanted).create_infer_request()
        call()
    return call


def onnx_runtime(model: nn.Module, x: Tensor) -> Call | None:
    """ONNX Runtime on the graph that torch exports; the export needs onnx and onnxscript beside it."""
    runtime = load("ONNX Runtime")
    if runtime is None or load("onnxscript") is None:
        return None
    file, log = io.BytesIO(), logging.getLogger(EXPORT_LOGS)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
        exported.save(file)
    finally:
        log.setLevel(level)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with on_all_cores():
        session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    name, given = session.get_inputs()[0].name, x.numpy()
    return lambda: session.run(None, {name: given})[0]


@contextmanager
def on_all_cores() -> Iterator[None]:
    """All cores for the calling thread, which OpenMP has pinned: threads that a runtime starts inherit them."""
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)
