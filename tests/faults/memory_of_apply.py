"""The memory that `apply` takes, in a process without garbage collections: prints lines of numbers of MB.

Arguments: for each line `given` or `pruned`, a comma, `inplace` or `apart`.
"""

import gc
import sys
from pathlib import Path

import torch
from torch import nn

import sparsify


def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def tensors():
    """The bytes of all tensors that there are, in cycles of references too."""
    found = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided:
            storage = value.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return sum(found.values()) / 2**20


def encoder(width, layers):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


TARGETS = ["param:*linear?.weight", "param:*out_proj.weight"]
GIVEN = {"schema": 1, "name": "given", "sparsify": [{"targets": TARGETS, "source": "given"}]}
PRUNE = {"targets": TARGETS, "prune": {"method": "magnitude", "sparsity": 0.9}}
PRUNED = {"schema": 1, "name": "pruned", "sparsify": [PRUNE]}


def measured(kind, place):
    """The size of a model; of `apply` the peak, what is held after it, of that in tensors, and of that in cycles."""
    model = encoder(768, 4)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "in_proj" not in name:
            parameter.data *= torch.rand(parameter.shape) < 0.1
    size = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    x = torch.randn(2, 16, 768)
    gc.collect()
    before, tensors_before = memory("VmRSS"), tensors()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    sparse = sparsify.apply(model, GIVEN if kind == "given" else PRUNED, x, inplace=place == "inplace")
    assert sparse.report.parameter_bytes[1] < sparse.report.parameter_bytes[0]
    peak, after, tensors_after = memory("VmHWM"), memory("VmRSS"), tensors()
    gc.collect()
    return (
        size,
        peak - before + size,
        after - before,
        tensors_after - tensors_before,
        tensors_after - tensors(),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    sparsify.apply(encoder(64, 1), GIVEN, torch.randn(2, 8, 64))  # loads what stays loaded
    gc.disable()
    for pair in sys.argv[1:]:
        print(*measured(*pair.split(",")))
