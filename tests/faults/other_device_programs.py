"""Programs and models on the device of `other_device.cpp`, in a process of their own: `python FILE LIBRARY`.

In: the compiled library. Out: a line of JSON, whether each result is that of the CPU.
"""

import copy
import json
import sys
import types
import warnings

import torch
from torch import nn
from torch.nn import functional

import sparsify
from sparsify.errors import DeviceError

WEIGHTS = {"targets": ["param:*.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
PANELS = "i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)"
MASK = {"kind": "sliding_window", "before": 4, "after": 4}
FOUND: dict[str, object] = {}


def register(library):
    """The device as a part of torch, which asks its module for random numbers."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("other")
    module = types.ModuleType("torch.other")
    module.is_available, module.device_count, module.current_device = lambda: True, lambda: 1, lambda: 0
    module._is_in_bad_fork, module.manual_seed_all = lambda: False, lambda seed: None
    module.get_rng_state = lambda *_: torch.zeros(1, dtype=torch.uint8)
    module.set_rng_state, module.set_device = lambda *_: None, lambda _: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module("other", module)


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x, edges):
        x = self.linear(x)
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], 2, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(12, 5)
        self.up, self.down = nn.Parameter(torch.randn(5, 20, 12)), nn.Parameter(torch.randn(5, 12, 20))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gate = torch.zeros(x.shape[0], 5, device=x.device).scatter(1, chosen, weights)
        rows = torch.einsum("td,ehd->teh", x, self.up).relu()
        return torch.einsum("te,teo->to", gate, torch.einsum("teh,eoh->teo", rows, self.down))


class Product(nn.Module):
    def forward(self, a, x):
        return a * (x @ x.T)


def perceptron():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))


def models():
    """Per name a model, its rule and its inputs."""
    x = torch.randn(8, 64)
    a = torch.rand(40, 40) * (torch.rand(40, 40) > 0.9)
    attention = {"targets": ["op:scaled_dot_product_attention"], "mask": MASK}
    bags = torch.randint(0, 50, (40,)), torch.arange(0, 40, 4)
    bag = {"targets": ["op:embedding_bag"], "format": "csr"}
    return {
        "csr": (perceptron(), WEIGHTS | {"format": "csr"}, (x,)),
        "panels": (perceptron(), WEIGHTS | {"format": PANELS}, (x,)),
        "int8": (perceptron(), WEIGHTS | {"dtype": "int8"}, (x,)),
        "messages": (
            Messages(),
            {"targets": ["op:message_passing"], "format": "csr"},
            (torch.randn(30, 16), torch.randint(0, 30, (2, 90))),
        ),
        "attention": (Attention(), attention, (torch.randn(2, 64, 32),)),
        "experts": (
            Experts(),
            {"targets": ["op:experts"], "role": "gate", "source": "computed"},
            (torch.randn(20, 12),),
        ),
        "general": (Product(), {"targets": ["input:a"], "format": "csr"}, (a, torch.randn(40, 8))),
        "bag": (nn.EmbeddingBag(50, 16, mode="sum"), bag, bags),
    }


def near(name, found, wanted):
    FOUND[name] = bool(torch.allclose(found.detach().cpu(), wanted.detach().cpu(), rtol=1e-3, atol=1e-4))


def elsewhere(values):
    return tuple(value.to("other") for value in values)


def check_programs():
    """Products, gradients and sparse results."""
    dense = torch.randn(8, 6) * (torch.rand(8, 6) < 0.3)
    x = torch.randn(6, 4)
    for form in ("csr", "csc", "coo", "bcsr(2,2)", "ell", "dia"):
        A = sparsify.tensor(dense, form).to("other")
        near(form, sparsify.einsum("ij,jk->ik", A, x.to("other")), dense @ x)
    A = sparsify.tensor(dense, "csr").to("other")
    near("sparse result", sparsify.einsum("ij,kj->ik", A, A).to_dense(), dense @ dense.T)
    near("converted", A.to(format="csc").to_dense(), dense)
    a, b, c = A.detach().requires_grad_(), x.to("other").requires_grad_(), dense.clone().requires_grad_()
    own = torch.autograd.grad(sparsify.evaluate("y[i,k] = tanh(A[i,j] * x[j,k])", A=a, x=b).sum(), (a, b))
    right = torch.autograd.grad(torch.tanh(c @ b.cpu()).sum(), c)
    near("gradient of a sparse operand", own[0].to_dense(), right[0] * (dense != 0))
    near(
        "gradient of a dense operand",
        own[1],
        torch.autograd.grad(torch.tanh(c @ (d := x.clone().requires_grad_())).sum(), d)[0],
    )
    for what, operands in (("strict", (A, x.to("other"))), ("mixed", (A, x))):
        with sparsify.strict():
            try:
                sparsify.einsum("ij,jk->ik", *operands)
            except DeviceError as error:
                FOUND[what] = str(error)


def check_model(name, model, rule, inputs):
    """A model that is moved after it was made sparse, one that was there before, and its way back."""
    recipe = {"schema": 1, "name": name, "sparsify": [rule]}
    sparse = sparsify.apply(copy.deepcopy(model).eval(), recipe, inputs)
    with torch.no_grad():
        wanted = sparse(*inputs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sparse.to("other")
        with torch.no_grad():
            near(f"{name} moved", sparse(*elsewhere(inputs)), wanted)
            sparse(*elsewhere(inputs))
    FOUND[f"{name} warnings"] = [str(one.message) for one in said if one.category is RuntimeWarning]
    FOUND[f"{name} kernels"] = [region.kernel for region in sparse.report.regions]
    with torch.no_grad():
        near(f"{name} compiled", torch.compile(sparse, backend="aot_eager")(*elsewhere(inputs)), wanted)
        near(f"{name} copied", copy.deepcopy(sparse)(*elsewhere(inputs)), wanted)
    FOUND[f"{name} state"] = all(value.device.type == "other" for value in sparse.state_dict().values())
    with torch.no_grad():
        near(f"{name} back", sparse.cpu()(*inputs), wanted)


def check_training(name, model, rule, inputs):
    """Gradients and steps of an optimizer, on both devices."""
    recipe = {"schema": 1, "name": name, "sparsify": [rule]}
    sparse = sparsify.apply(copy.deepcopy(model).train(), recipe, inputs)
    twin = copy.deepcopy(sparse).to("other")
    FOUND[f"{name} verified"] = twin.verify_gradients(*elsewhere(inputs)) < 1e-2
    for one, given in ((sparse, inputs), (twin, elsewhere(inputs))):
        optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            one(*given).square().sum().backward()
            optimizer.step()
    for key, value in sparse.state_dict().items():
        near(f"{name} trained {key}", twin.state_dict()[key], value)


def main():
    register(sys.argv[1])
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    check_programs()
    for name, (model, rule, inputs) in models().items():
        check_model(name, model, rule, inputs)
        if name in ("csr", "messages", "attention", "experts"):
            check_training(name, model, rule, inputs)
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
