"""Models in folders with their kernels: loaded without class, compiler and cache, and what is refused."""

import copy
import json
import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph
from torch import nn
from torch.utils import _pytree as pytree

import sparsify
from sparsify.compiler.cpp.toolchain import cache, levels
from sparsify.errors import CaptureError, DataError
from sparsify.passes import saved_folder
from sparsify.passes.served import load as loading
from sparsify.passes.served.served_module import ServedModule

HALF = {
    "schema": 1,
    "name": "half",
    "sparsify": [
        {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}, "ties": "share"}
    ],
}


class Tied(nn.Module):
    """Two layers that share a weight, a buffer that is no part of the state, keyword arguments, nested results."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.arange(3), persistent=False)

    def forward(self, x, *, scale=1.0, more=None):
        y = torch.relu(self.first(x))
        y = self.second(y) * scale + (0 if more is None else more)
        return {"y": y, "parts": (y.sum(), [self.steps])}


INPUT = torch.linspace(-1, 1, 64).reshape(4, 16)
KINDS = (((INPUT,), {}), ((INPUT[:3],), {}), ((INPUT,), {"scale": 2.0}), ((INPUT,), {"more": INPUT}))


def tied():
    torch.manual_seed(0)
    sparse = sparsify.apply(Tied().eval(), HALF, trainable=False)
    for args, kwargs in KINDS:
        sparse(*args, **kwargs)
    return sparse


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model that was saved with its kernels, and its folder."""
    with sparsify.options.override(tune_seconds=0):
        sparse = tied()
        return sparse, sparsify.save(sparse, tmp_path_factory.mktemp("served"), kernels=True)


def are_equal(one, other):
    """Whether two results have the same structure and the same bits."""
    (first, spec), (second, known) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return spec == known and all(map(torch.equal, first, second))


@pytest.fixture
def refused_builds(monkeypatch):
    """A function after which every request for a kernel that is not in the folder fails."""

    def refuse(*_):
        raise AssertionError("a kernel is built")

    return lambda: monkeypatch.setattr(cache, "_known_or_made", refuse)


@pytest.mark.sampled(3)
def test_it_runs_without_class_compiler_and_cache(served, tmp_path):
    sparse, folder = served
    expected = [leaf for args, kwargs in KINDS for leaf in pytree.tree_leaves(sparse(*args, **kwargs))]
    torch.save((KINDS, expected), tmp_path / "expected.pt")
    code = """
        import sys, torch, warnings
        from torch.utils import _pytree as pytree
        import sparsify
        from sparsify.compiler.cpp.call import foreign_call

        warnings.simplefilter("error", RuntimeWarning)
        kinds, expected = torch.load(sys.argv[2])
        served = sparsify.load(sys.argv[1])
        found = [leaf for args, kwargs in kinds for leaf in pytree.tree_leaves(served(*args, **kwargs))]
        assert all(map(torch.equal, found, expected))
        assert foreign_call.trampolines() is not None, "they are in the folder"
        assert served.first.weight is served.second.weight
        assert "torch.distributed.tensor" not in sys.modules, "it takes a second"
        kinds = ("compiler.pipeline", "compiler.loops.lower", "compiler.schedule.templates", "compiler.explain",
                 "compiler.reference.evaluate", "compiler.plan.plan", "passes.pipeline", "passes.capture.export",
                 "passes.module.capture_call", "passes.rewrite", "passes.decide", "ops")
        heavy = [f"sparsify.{kind}" for kind in kinds] + ["torch._dynamo", "torch._inductor", "sympy", "scipy"]
        heavy += ["pydantic", "ruamel.yaml"]
        known = [name for name in heavy if name in sys.modules]
        assert not known, f"neither loading nor calls compile, capture or export: {known}"
    """
    known = {
        **os.environ,
        "PATH": "",
        "SPARSIFY_CACHE_DIR": str(tmp_path / "none"),
        "CXX": "",
        "SPARSIFY_CXX": "",
    }
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(folder), str(tmp_path / "expected.pt")]
    ran = subprocess.run(arguments, env=known, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "none").exists()


MEMORY = """
    import os, sys, torch
    import sparsify
    import sparsify.passes.save
    from sparsify.runner.measure import CLEAR, resident

    torch.set_num_threads(1)
    x = torch.ones(8, 2048)
    with torch.no_grad():
        torch.nn.functional.linear(x, torch.ones(16, 2048)).relu()  # pages of torch's operators
        CLEAR.write_text("5")
        before, private = resident("VmRSS"), resident("RssAnon")
        served = sparsify.load(sys.argv[1])
        served(x)
    print(resident("VmHWM") - before, resident("RssAnon") - private)
"""


@pytest.mark.sampled(4)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system has no peak of memory")
def test_weights_are_in_memory_once_up_to_the_first_result(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).eval()
    rule = {**HALF["sparsify"][0], "prune": {"method": "magnitude", "sparsity": 0.8}}
    with sparsify.options.override(tune_seconds=0):
        recipe = {**HALF, "sparsify": [rule]}
        sparse = sparsify.apply(model, recipe, (torch.ones(8, 2048),), trainable=False)
        folder = sparsify.save(sparse, tmp_path, kernels=True)
    size = (folder / "weights.safetensors").stat().st_size
    assert size < 8 * 2048 * 2048 * 2, "kernels read packed weights"
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    peak, private = map(int, ran.stdout.split())
    assert peak < 1.3 * size, "files are mapped"
    assert private < 0.15 * size, "a copy of the coordinates is a third"


RESULT_OF_TRANSFORMERS = """
    import copy, pickle, sys, torch
    import sparsify

    served = sparsify.load(sys.argv[1])
    x, expected = torch.load(sys.argv[2])
    result = served(x)
    assert "transformers" not in sys.modules, "the import takes longer than loading"
    assert type(result).__name__ == "BaseModelOutput" and list(result) == ["last_hidden_state"]
    for found in (result[0], result["last_hidden_state"], result.last_hidden_state, *result.to_tuple()):
        assert torch.equal(found, expected)
    assert torch.utils._pytree.tree_leaves(result)[0] is result[0]
    try:
        result.unknown
    except AttributeError:
        pass
    else:
        raise AssertionError("no such field")
    assert result.hidden_states is None
    from transformers.modeling_outputs import BaseModelOutput

    assert isinstance(result, BaseModelOutput) and not isinstance(result, tuple)
    for found in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), served(x)):
        assert type(found) is BaseModelOutput and torch.equal(found.last_hidden_state, expected)
"""


@pytest.mark.sampled(3)
def test_results_of_transformers_do_without_transformers(tmp_path):
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16, 16)

        def forward(self, x):
            return outputs.BaseModelOutput(last_hidden_state=self.lin(x))

    with sparsify.options.override(tune_seconds=0):
        sparse = sparsify.apply(Encoder().eval(), HALF, (INPUT,), trainable=False)
        sparsify.save(sparse, tmp_path / "served", kernels=True)
    torch.save((INPUT, sparse(INPUT).last_hidden_state), tmp_path / "expected.pt")
    arguments = [str(tmp_path / "served"), str(tmp_path / "expected.pt")]
    code = textwrap.dedent(RESULT_OF_TRANSFORMERS)
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.sampled(3)
def test_steps_of_a_decoder_with_its_keys(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=60, **sizes)).eval()
    rule = {**HALF["sparsify"][0], "targets": ["param:*proj.weight"]}
    text = torch.randint(0, 60, (1, 5))

    def generated(model, steps):
        cache, ids, tokens = transformers.DynamicCache(), text, []
        with torch.no_grad():
            for _ in range(steps):
                result = model(input_ids=ids, past_key_values=cache, use_cache=True)
                assert result.past_key_values is cache, "the caller's cache holds the keys"
                ids = result.logits[:, -1:].argmax(-1)
                tokens.append(int(ids))
        assert cache.get_seq_length() == 5 + steps - 1
        return tokens

    with sparsify.options.override(tune_seconds=0):
        sparse = sparsify.apply(model, {**HALF, "sparsify": [rule]}, trainable=False)
        expected = generated(sparse, 12)
        assert len(sparse.variants) == 2, "a graph for the text and one for all steps"
        loaded = sparsify.load(sparsify.save(sparse, tmp_path, kernels=True))
    assert generated(loaded, 12) == expected
    dense = copy.deepcopy(model)
    dense.load_state_dict({name: torch.as_tensor(value) for name, value in dense_state(sparse).items()})
    assert generated(dense, 12) == expected
    with pytest.raises(CaptureError, match="past_key_values"):
        loaded(input_ids=text, past_key_values=transformers.DynamicCache(offloading=True), use_cache=True)


def dense_state(sparse):
    """The state of a sparse model as dense tensors."""
    state = sparse.state_dict()
    return {name: value.to_dense() if hasattr(value, "to_dense") else value for name, value in state.items()}


def test_weights_lie_in_the_mapped_file(served):
    _, folder = served
    weight = sparsify.load(folder).first.weight
    maps = Path("/proc/self/maps").read_text().splitlines()
    maps = [line for line in maps if str(folder / "weights.safetensors") in line]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    for array in (weight._vals, *weight._pattern.arrays_in_place()):
        assert any(low <= array.data_ptr() < high for low, high in ranges)


def test_the_state_is_that_of_the_model(served):
    sparse, folder = served
    mine, theirs = sparsify.load(folder).state_dict(), sparse.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_class_can_be_given_too(served):
    sparse, folder = served
    loaded = sparsify.load(folder, Tied())
    assert not isinstance(loaded, ServedModule)
    torch.testing.assert_close(loaded(INPUT), sparse(INPUT))


def test_other_sizes_run_by_the_kernel_of_the_nearest(served, refused_builds):
    sparse, folder = served
    many = torch.randn(300, 16)
    expected = sparse(many)
    refused_builds()
    torch.testing.assert_close(sparsify.load(folder)(many), expected)


def test_kinds_called_under_autocast_before(tmp_path):
    with sparsify.options.override(tune_seconds=0):
        sparse = tied()
        with torch.autocast("cpu", torch.bfloat16):
            expected = sparse(INPUT)
        loaded = sparsify.load(sparsify.save(sparse, tmp_path, kernels=True))
    with torch.autocast("cpu", torch.bfloat16):
        found = loaded(INPUT)
        assert {leaf.dtype for leaf in pytree.tree_leaves(found)} == {torch.bfloat16, torch.int64}
        assert are_equal(found, expected)
        with pytest.raises(CaptureError, match=r"under torch.autocast once before sparsify.save"):
            loaded(INPUT, scale=2.0)
    with torch.autocast("cpu", torch.float16), pytest.raises(CaptureError, match="of a call of its code"):
        loaded(INPUT)
    assert are_equal(loaded(INPUT), sparse(INPUT))


def test_an_exported_program_holds_all_that_it_computes(served, tmp_path):
    sparse, folder = served
    program = torch.export.export(sparsify.load(folder), (INPUT,))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "sparsify.compute.default" in called
    assert "sparsify.region.default" not in called
    torch.export.save(program, tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()(INPUT)
    torch.testing.assert_close(found, sparse(INPUT))


def test_copies_and_pickles_load_the_folder(served):
    sparse, folder = served
    loaded = sparsify.load(folder)
    for other in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert are_equal(other(INPUT), sparse(INPUT))
    with pytest.raises(DataError, match="copy that folder"):
        sparsify.save(loaded, folder.parent / "again", kernels=True)


class Images(nn.Module):
    """Convolutions, one of which stays torch's, a normalisation and pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x) + x).mean((2, 3)))


class Attention(nn.Module):
    """Attention under a pattern."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


PATTERN = {
    "schema": 1,
    "name": "window",
    "sparsify": [
        {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "sliding_window", "before": 3}}
    ],
}
INT8 = {**HALF, "sparsify": [{**HALF["sparsify"][0], "dtype": "int8"}]}
ORDERED = {**MESSAGES, "sparsify": [{**rule, "reorder": "rcm"} for rule in MESSAGES["sparsify"]]}
SUBJECTS = {
    "messages": lambda: (TwoLayers(HandWritten), MESSAGES, graph()),
    "images": lambda: (Images(), HALF, (torch.randn(2, 3, 9, 9),)),
    "attention": lambda: (Attention(), PATTERN, (torch.randn(2, 12, 16),)),
    "int8": lambda: (
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)),
        INT8,
        (torch.randn(3, 32),),
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SUBJECTS)
def test_models_of_many_kinds(name, tmp_path, refused_builds):
    torch.manual_seed(0)
    model, recipe, inputs = SUBJECTS[name]()
    sparse = sparsify.apply(model.eval(), recipe, inputs, trainable=False)
    assert sparse.report.regions
    expected = sparse(*inputs)
    folder = sparsify.save(sparse, tmp_path, kernels=True)
    refused_builds()
    loaded = sparsify.load(folder, warmup=[{"inputs": inputs}])
    assert are_equal(loaded(*inputs), expected)
    assert len(loaded.report.regions) == len(sparse.report.regions)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


REFUSED = {
    "a dtype": (
        lambda m: m(INPUT.double()),
        CaptureError,
        r"no graph for a call with \(x: float64 \[4, 16\]\)",
    ),
    "a shape": (
        lambda m: m(INPUT[:, :8]),
        CaptureError,
        r"graphs are for \(x: float32 \[\w+, 16\]\) and .*scale=2",
    ),
    "an argument": (lambda m: m(INPUT, scale=3.0), CaptureError, "scale=3.0"),
    "training": (lambda m: m.train(), CaptureError, "it is frozen, and does not train"),
    "a conversion": (lambda m: m.double(), CaptureError, "not for torch.float64"),
    "autocast": (
        lambda m: in_bfloat16(m),
        CaptureError,
        "the dtypes of results under autocast are those of a call of its code",
    ),
}


def in_bfloat16(module):
    with torch.autocast("cpu", torch.bfloat16):
        return module(INPUT)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_model_without_its_class_does_not_do(served, name):
    call, kind, text = REFUSED[name]
    loaded = sparsify.load(served[1])
    with pytest.raises(kind, match=text):
        call(loaded)
    assert are_equal(loaded(INPUT), served[0](INPUT))


def test_what_load_refuses_without_a_model(served, tmp_path):
    sparse, folder = served
    plain = sparsify.save(sparse, tmp_path / "plain")
    with pytest.raises(DataError, match=r"of a Tied, and neither graphs nor kernels; give the model"):
        sparsify.load(plain)
    with pytest.raises(DataError, match="without a model nothing is captured"):
        sparsify.load(folder, trainable=True)


def test_what_save_refuses(tmp_path):
    model = nn.Sequential(nn.Linear(16, 16))
    sparse = sparsify.apply(model.eval(), HALF, trainable=False)
    with pytest.raises(DataError, match="no call of this model was captured"):
        sparsify.save(sparse, tmp_path, kernels=True)
    with pytest.raises(DataError, match="a model in training is not served"):
        sparsify.save(sparse.train(), tmp_path, kernels=True)
    with pytest.raises(DataError, match="'sse9' is no level of CPUs; some of native, avx512, avx2"):
        sparsify.save(sparse, tmp_path, kernels=True, target=["sse9"])
    assert not any(tmp_path.iterdir())


class Answer(dict):
    """A result of a class that torch knows, but not by name."""


def test_a_result_whose_class_has_no_name(tmp_path):
    pytree.register_pytree_node(
        Answer,
        lambda answer: (list(answer.values()), list(answer)),
        lambda values, names: Answer(zip(names, values, strict=True)),
        flatten_with_keys_fn=lambda answer: (
            [(pytree.MappingKey(key), value) for key, value in answer.items()],
            list(answer),
        ),
    )

    class Answering(nn.Sequential):
        def forward(self, x):
            return Answer(y=super().forward(x))

    sparse = sparsify.apply(Answering(nn.Linear(16, 16)).eval(), HALF, (INPUT,), trainable=False)
    with pytest.raises(DataError, match="serialized_type_name"):
        sparsify.save(sparse, tmp_path, kernels=True)


@pytest.fixture
def copied(served, tmp_path):
    """A copy of the folder."""
    import shutil

    return shutil.copytree(served[1], tmp_path / "copy")


@pytest.mark.parametrize("name", ["weights.safetensors", "graph.json", "recipe.yaml", "kernel"])
@pytest.mark.parametrize("how", ["gone", "other", "longer"])
def test_files_that_are_missing_or_were_changed(copied, name, how):
    path = next(copied.glob("kernels-*/*.so")) if name == "kernel" else copied / name
    content = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes(content + b"\n" if how == "longer" else content[:-1] + b"\1")
    why = {"gone": "No such file", "other": "SHA-256", "longer": "bytes and had"}[how]
    with pytest.raises(DataError, match=rf"cannot read {path}: .*{why}"):
        sparsify.load(copied)


def rewritten(folder, change):
    """Changes graphs as their writer could have written them."""
    path, told = folder / "graph.json", json.loads((folder / "manifest.json").read_text())
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    told["files"]["graph.json"] = asdict(saved_folder._file(path))
    (folder / "manifest.json").write_text(json.dumps(told))


def test_graphs_of_another_version(copied):
    rewritten(copied, lambda document: document.pop("calls"))
    with pytest.raises(
        DataError, match=r"and this is another version: KeyError: 'calls'; load it with that version"
    ):
        sparsify.load(copied)


@pytest.mark.parametrize(
    "target, text",
    [
        ({"operator": "mine::gone"}, "calls the operator mine::gone, which torch"),
        ({"operator": "aten::from_file"}, "aten::from_file"),
        ({"builtins": "eval"}, "KeyError: 'eval'"),
        ({"own": "exec"}, "KeyError: 'exec'"),
        ({"operator": "os.system"}, "os.system"),
    ],
    ids=str,
)
def test_graphs_call_nothing_but_what_is_listed(copied, target, text):
    def change(document):
        for variant in document["variants"]:
            line = next(line for line in variant["run"]["nodes"] if line[0] == "call_function")
            line[2] = target

    rewritten(copied, change)
    with pytest.raises(DataError, match=text):
        sparsify.load(copied)


def test_kernels_for_another_cpu(copied, monkeypatch, served):
    monkeypatch.setattr(levels.target, "instructions", lambda: frozenset(("sse2",)))
    with pytest.warns(
        RuntimeWarning, match="cannot be used, they are built on this machine .*: they are for other CPUs"
    ):
        loaded = sparsify.load(copied)
    monkeypatch.undo()
    torch.testing.assert_close(loaded(INPUT), served[0](INPUT))


def test_kernels_of_another_version(copied, monkeypatch, served):
    monkeypatch.setattr(loading, "code_digest", lambda: "another")
    with pytest.warns(RuntimeWarning, match="they were built by another version of sparsify"):
        loaded = sparsify.load(copied)
    torch.testing.assert_close(loaded(INPUT), served[0](INPUT))


def test_a_later_save_takes_the_place_of_kernels(copied, served):
    sparse, _ = served
    plain = sparsify.save(sparse, copied)
    assert {path.name for path in plain.iterdir()} == {"weights.safetensors", "recipe.yaml", "manifest.json"}
    again = sparsify.save(sparse, copied, kernels=True)
    again = sparsify.save(sparse, again, kernels=True)
    assert len(list(again.glob("kernels-*"))) == 1
    assert are_equal(sparsify.load(again)(INPUT), sparse(INPUT))


@pytest.mark.sampled(3)
@pytest.mark.skipif(not levels.target.has("avx2"), reason="this CPU has no AVX2")
def test_kernels_for_levels_of_cpus(tmp_path, monkeypatch, served):
    sparse, _ = served
    folder = sparsify.save(sparse, tmp_path, kernels=True, target=["avx512", "avx2"])
    monkeypatch.setattr(loading, "PREFERRED", ("avx2",))
    torch.testing.assert_close(sparsify.load(folder)(INPUT), sparse(INPUT))
