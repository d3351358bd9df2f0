"""Other installed runtimes for a dense model: in float32, with as many threads as torch.

In: `network(model, x)`. Out: `{"inductor": call, "OpenVINO": call, "ONNX Runtime": None, ...}`: calls by runtime,
`None` for a missing one. `inductor(model, inputs)`, `openvino` and `onnx_runtime` make one call each; the result of a
call is a tree of tensors, or a list of arrays.
"""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.runner.peers.installed import Call, load

# Minimum share of zeros of weights that OpenVINO keeps compressed and decompresses on reading.
SPARSE_WEIGHTS: Final = {"CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": 0.5}
EXPORT_LOGS: Final = "torch.onnx"
QUANTIZATION_LOGS: Final = "nncf"


def network(model: nn.Module, x: Tensor) -> dict[str, Call | None]:
    """A dense model by inductor with frozen weights, OpenVINO without and with its option for zeros, and ONNX Runtime.

    Args:
        model: in evaluation mode, of one input and one result.
        x: the input of every call.
    """
    return {
        "inductor": inductor(model, (x,)),
        "OpenVINO": first(openvino(model, (x,))),
        "OpenVINO sparse": first(openvino(model, (x,), SPARSE_WEIGHTS)),
        "ONNX Runtime": first(onnx_runtime(model, (x,))),
    }


def first(call: Call | None) -> Call | None:
    """A call that returns only the first result of `call`."""
    return None if call is None else lambda: call()[0]


def inductor(model: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    """`torch.compile` with weights as constants."""
    compiled = torch.compile(model, options={"freezing": True})

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return call


def openvino(
    model: nn.Module, inputs: Sequence[Tensor], settings: dict[str, Any] | None = None
) -> Call | None:
    """OpenVINO for one call at a time."""
    if (runtime := load("OpenVINO")) is None:
        return None
    return _request(runtime, _converted(runtime, model, inputs), inputs, settings or {})


def openvino_int8(model: nn.Module, inputs: Sequence[Tensor]) -> Call | None:
    """OpenVINO with weights and activations in int8, as nncf quantises them by the inputs; for transformers."""
    if (quantization := load("OpenVINO int8")) is None:
        return None
    runtime = load("OpenVINO")
    samples = quantization.Dataset([[x.numpy() for x in inputs]])
    logger = logging.getLogger(QUANTIZATION_LOGS)
    logger.setLevel(logging.ERROR)
    quantised = quantization.quantize(
        _converted(runtime, model, inputs),
        samples,
        subset_size=1,
        model_type=quantization.ModelType.TRANSFORMER,
    )
    return _request(runtime, quantised, inputs, {})


def _converted(runtime: Any, model: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """A model as OpenVINO's graph."""
    return runtime.convert_model(model, example_input=inputs[0] if len(inputs) == 1 else tuple(inputs))


def _request(runtime: Any, converted: Any, inputs: Sequence[Tensor], settings: dict[str, Any]) -> Call:
    """Calls of OpenVINO's graph with fixed inputs."""
    wanted = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        **settings,
    }
    given = [x.numpy() for x in inputs]

    def call() -> list[Any]:
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return [found[number] for number in range(len(found))]

    with on_all_cores():
        request = runtime.Core().compile_model(converted, "CPU", wanted).create_infer_request()
        call()
    return call


def onnx_runtime(model: nn.Module, inputs: Sequence[Tensor]) -> Call | None:
    """ONNX Runtime on the graph exported by torch; the export needs onnx and onnxscript, too."""
    if (runtime := load("ONNX Runtime")) is None:
        return None
    file, log = io.BytesIO(), logging.getLogger(EXPORT_LOGS)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported: Any = torch.onnx.export(model, tuple(inputs), dynamo=True, verbose=False)
        exported.save(file)
    finally:
        log.setLevel(level)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with on_all_cores():
        session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return lambda: session.run(None, given)


@contextmanager
def on_all_cores() -> Iterator[None]:
    """All cores for the calling thread if OpenMP has pinned the thread to fewer cores than torch has threads.

    Threads started by a runtime inherit the affinity.
    """
    pinned = os.sched_getaffinity(0)
    if len(pinned) < torch.get_num_threads():
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)
