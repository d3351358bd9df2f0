"""Attacks on saved models: saves that end early, disks that are full, folders that were changed."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sparsify
from sparsify import recipe
from sparsify.errors import DataError, RecipeError
from sparsify.passes import saved_folder

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}}],
}
INPUT = torch.linspace(-1, 1, 8).reshape(2, 4)


def model(seed=0, hidden=6):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3)).eval()


def applied(seed=0):
    return sparsify.apply(model(seed), RECIPE)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def is_same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def folder(tmp_path):
    """A folder with a saved model."""
    return sparsify.save(applied(), tmp_path / "model")


def held(folder):
    """The weights in a folder."""
    return saved_folder.read(folder, recipe.loads)[1]


def names(folder):
    return {path.name for path in folder.iterdir()}


W, R, M = FILES = "weights.safetensors", "recipe.yaml", "manifest.json"


def test_weights_of_a_folder_compute_the_same(tmp_path):
    sparse = sparsify.apply(model(), RECIPE, INPUT)
    loaded = sparsify.load(sparsify.save(sparse, tmp_path), model(1), INPUT)
    assert torch.equal(loaded(INPUT), sparse(INPUT))
    assert names(tmp_path) == {*FILES}


class Killed(BaseException):
    """The end of a process, after which nothing is tidied up."""


@pytest.mark.sampled(2)
def test_a_save_that_ends_at_any_step_leaves_a_whole_model(folder, monkeypatch):
    before, after = held(folder), state(applied(1))
    (folder / "notes.txt").write_text("mine")
    steps = ("replace", "rename", "rmdir", "fsync", "open", "mkdir", "unlink", "stat")
    outcomes = []
    for last in range(1000):
        count = 0

        def stopping(function, last=last):
            def call(*args, **kwargs):
                nonlocal count
                if str(folder) in str(args[:1]) or isinstance(args[0], int):
                    count += 1
                    if count > last:
                        raise Killed
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for step in steps:
                patch.setattr(os, step, stopping(getattr(os, step)))
            patch.setattr(saved_folder, "save_file", stopping(saved_folder.save_file))
            try:
                sparsify.save(applied(1), folder)
                finished = True
            except Killed:
                finished = False
        found = held(folder)
        assert is_same(found, before) or is_same(found, after), f"torn after {last} steps"
        outcomes.append(is_same(found, after))
        if finished:
            break
        sparsify.save(applied(), folder)  # tidies up
        assert names(folder) == {*FILES, "notes.txt"}
    assert len(outcomes) > 10
    assert not outcomes[0]
    assert outcomes[-1]


KILLED_SAVES = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from sparsify.passes import saved_folder
    torch.set_num_threads(1)
    place, draw, outcomes = Path(sys.argv[1]), random.Random(0), set()
    facts = dict(model="M", training=False, strict=False, verify=True, trainable=None, tied={})
    tensors = lambda value: {"a": torch.full((200_000,), value), "b": torch.full((100_000,), value)}
    saved_folder.write(place, tensors(0.0), "value: 0.0", facts)
    for turn in range(40):
        child = os.fork()
        if child == 0:
            saved_folder.write(place, tensors(turn + 1.0), f"value: {turn + 1.0}", facts)
            os._exit(0)
        time.sleep(draw.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)[1]
        _, found, text = saved_folder.read(place, lambda text, file: text)
        value = found["a"][0].item()
        assert text == f"value: {value}" and all((t == value).all() for t in found.values())
        outcomes.add((value == turn + 1.0, ended == 0))
    saved_folder.write(place, tensors(0.0), "", facts)
    assert len(list(place.iterdir())) == 3, list(place.iterdir())
    print(sorted(outcomes))
"""


@pytest.mark.sampled(3)
def test_killed_processes_leave_whole_models(tmp_path):
    code = textwrap.dedent(KILLED_SAVES)
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "(False, False)" in run.stdout, "no save was killed in time"


def test_full_disks(folder, monkeypatch):
    """File sizes that are limited end writes as full disks do."""
    before = held(folder)
    wide = sparsify.apply(model(hidden=60_000), RECIPE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DataError, match=r"cannot save into .*model: .*large"):
            sparsify.save(wide, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="the disk is full; an earlier model in this folder is unchanged"):
        sparsify.save(applied(1), folder)
    monkeypatch.undo()
    assert is_same(held(folder), before)
    assert names(folder) == {*FILES}


def test_concurrent_saves_and_loads(folder):
    """One of several concurrent saves wins as a whole; loads meanwhile give one of them."""
    modules = {seed: applied(seed) for seed in range(4)}
    states = {seed: state(module) for seed, module in modules.items()}
    errors = []

    def saves(seed):
        try:
            for _ in range(20):
                sparsify.save(modules[seed], folder)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=saves, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = held(folder)
        assert any(is_same(found, value) for value in states.values())
    assert not errors
    assert names(folder) == {*FILES}


def rewritten(folder, **changes):
    """Changes keys of the manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def append(path, text):
    path.write_text(path.read_text() + text)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = {
    "weights flipped": (lambda f: flip(f / W), "weights.safetensors: it has the SHA-256 sum .* and had"),
    "weights cut": (lambda f: os.truncate(f / W, 99), "weights.safetensors: it has 99 bytes and had"),
    "weights missing": (lambda f: (f / W).unlink(), "cannot read .*weights.safetensors"),
    "weights a pipe": (lambda f: replace_by_pipe(f / W), "weights.safetensors: .*not a regular file"),
    "weights a device": (lambda f: replace_by_device(f / W), "weights.safetensors: .*not a regular file"),
    "weights a folder": (lambda f: replace_by_folder(f / W), "weights.safetensors: .*not a regular file"),
    "recipe changed": (lambda f: append(f / R, "# mine"), "recipe.yaml: it has .* bytes and had"),
    "recipe flipped": (lambda f: (f / R).write_text((f / R).read_text().replace("0.5", "0.6")), "SHA-256 sum"),
    "recipe missing": (lambda f: (f / R).unlink(), "cannot read .*recipe.yaml"),
    "recipe no text": (lambda f: (f / R).write_bytes(b"\xff"), "cannot read .*recipe.yaml"),
    "recipe a pipe": (lambda f: replace_by_pipe(f / R), "recipe.yaml: .*not a regular file"),
    "recipe large": (lambda f: os.truncate(f / R, 10 << 30), "recipe.yaml: .*more than"),
    "manifest missing": (lambda f: (f / M).unlink(), "holds no saved sparse model"),
    "manifest empty": (lambda f: (f / M).write_text(""), "manifest.json is damaged"),
    "manifest a list": (lambda f: (f / M).write_text("[]"), "manifest.json is damaged"),
    "manifest deep": (lambda f: (f / M).write_text("[" * 10**6), "manifest.json is damaged"),
    "manifest large": (lambda f: os.truncate(f / M, 10 << 30), "more than"),
    "manifest no text": (lambda f: (f / M).write_bytes(b"\xff{}"), "manifest.json is damaged"),
    "manifest a pipe": (lambda f: replace_by_pipe(f / M), "not a regular file"),
    "manifest a device": (lambda f: replace_by_device(f / M), "not a regular file"),
    "layout of the future": (lambda f: rewritten(f, layout=99), "a layout that this version does not know"),
    "layout a text": (lambda f: rewritten(f, layout="two"), "damaged, layout"),
    "layout 0": (lambda f: rewritten(f, layout=0), "damaged, layout"),
    "layout large": (lambda f: rewritten(f, layout=10**400), "layout"),
    "no sums": (lambda f: rewritten(f, weights=None), "sums of its files are missing"),
    "sum a number": (lambda f: rewritten(f, weights={"bytes": 1, "sha256": 3}), "weights.sha256"),
    "other size": (lambda f: rewritten(f, weights={"bytes": -1, "sha256": ""}), "had -1 when"),
    "training a text": (lambda f: rewritten(f, training="no"), "training"),
    "trainable a number": (lambda f: rewritten(f, trainable=1), "trainable"),
    "tied a list": (lambda f: rewritten(f, tied=["a"]), "tied"),
    "tied to nothing": (lambda f: rewritten(f, tied={"0.weight": "x"}), "ties 0.weight to x, which weights"),
    "a weight more": (lambda f: rewritten(f, tied={"x": "0.weight"}), "do not fit this Sequential"),
    "another class": (lambda f: rewritten(f, model="Bert"), "holds a Bert, and the model is a Sequential"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders(folder, damage):
    change, words = DAMAGES[damage]
    change(folder)
    target = model(7)
    before = state(target)
    with pytest.raises(DataError, match=words):
        sparsify.load(folder, target)
    assert is_same(state(target), before)


def test_files_that_were_cut_are_named(folder):
    for path in folder.iterdir():
        whole = path.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 23)):
            path.write_bytes(whole[:place])
            with pytest.raises((DataError, RecipeError), match=path.name):
                saved_folder.read(folder, recipe.loads)
        path.write_bytes(whole)


def test_folders_of_layout_1(tmp_path):
    """The names and the manifest of earlier versions, which are replaced as a whole, too."""
    weights = state(applied())
    save_file(weights, tmp_path / "weights.safetensors")
    text = "schema: 1\nname: x\nsparsify: []\n"
    (tmp_path / "recipe.yaml").write_text(text)
    facts = {"model": "Sequential", "training": True, "strict": False, "verify": True, "trainable": None}
    manifest = {"layout": 1, **facts, "tied": {}, "sparsify": "0.1", "torch": "2.9"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    target = model(1)
    assert sparsify.load(tmp_path, target).training
    assert is_same(state(target), weights)
    (tmp_path / "recipe.yaml").write_text("schema: 1\nname: x\nspars: []\n")
    with pytest.raises(RecipeError, match=r"recipe.yaml:3"):
        sparsify.load(tmp_path, model(1))
    sparsify.save(applied(1), tmp_path)
    assert names(tmp_path) == {*FILES}
    assert is_same(held(tmp_path), state(applied(1)))


class Stubborn(nn.Sequential):
    """A model whose own code fails after the first weights are loaded."""

    def __init__(self, *parts, fails=True):
        super().__init__(*parts)
        if fails:
            self._modules["2"]._register_load_state_dict_pre_hook(self.fail)

    def fail(self, *_):
        self.register_buffer("extra", torch.ones(1))
        raise KeyError("2.weight")


def test_models_are_unchanged_when_loading_fails(tmp_path):
    folder = sparsify.save(applied(), tmp_path / "a")
    other = model(5)
    cases = [
        (folder, model(3, hidden=5).train(), {}, DataError, "size mismatch"),
        (folder, nn.ModuleList(other), {}, DataError, "holds a Sequential, and the model is a ModuleList"),
        (folder, model(3), {"example_inputs": INPUT[:, :2]}, RuntimeError, "shape"),
        (folder, model(3), {"colour": "red"}, TypeError, "colour"),
        (folder, nn.Sequential(*model(3), nn.Linear(3, 3)), {}, DataError, "Missing key"),
    ]
    stubborn = Stubborn(*model(4))
    plain = sparsify.save(sparsify.apply(Stubborn(*model(), fails=False).eval(), RECIPE), tmp_path / "b")
    cases.append((plain, stubborn, {}, DataError, "do not fit this Stubborn: .*2.weight"))
    for place, target, changes, error, words in cases:
        before, modes = state(target), [part.training for part in target.modules()]
        parameters = [id(p) for p in target.parameters()]
        with pytest.raises(error, match=words):
            sparsify.load(place, target, **changes)
        assert is_same({k: v for k, v in state(target).items() if k in before}, before)
        assert modes == [part.training for part in target.modules()]
        assert parameters == [id(p) for p in target.parameters()]


def test_models_of_derived_classes_load(folder):
    class Derived(nn.Sequential):
        pass

    target = Derived(*model(2))
    sparsify.load(folder, target)
    assert is_same(state(target), held(folder))


def test_folders_that_are_not_ours(tmp_path):
    taken = tmp_path / "web"
    taken.mkdir()
    (taken / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(DataError, match=r"manifest.json is damaged, layout"):
        sparsify.save(applied(), taken)
    assert json.loads((taken / "manifest.json").read_text()) == {"name": "a web page"}
    with pytest.raises(DataError, match=r"cannot save into .*manifest.json: "):
        sparsify.save(applied(), taken / "manifest.json")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "folder")
    with pytest.raises(DataError, match="cannot save into"):
        sparsify.save(applied(), tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(taken, target_is_directory=True)
    (taken / "manifest.json").unlink()
    for name in ("weights.safetensors", "recipe.yaml"):
        (taken / name).write_text("of somebody else")
        with pytest.raises(DataError, match=f"holds {name} and no saved sparse model"):
            sparsify.save(applied(), taken)
        assert (taken / name).read_text() == "of somebody else"
        (taken / name).unlink()
    sparsify.save(applied(), str(tmp_path / "link"))
    sparsify.save(applied(1), tmp_path / "link")
    assert is_same(held(taken), state(applied(1)))


def test_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert sparsify.save(applied(), "~/model") == tmp_path / "model"
    assert not Path("~").exists()
    sparsify.load("~/model", model())


class Odd(nn.Module):
    """Tied, shared, empty, transposed and viewed tensors."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.tied = self.a
        data = torch.arange(12, dtype=torch.float32)
        self.register_buffer("part", data[:6])
        self.register_buffer("turned", data.reshape(3, 4).t())
        self.register_buffer("as_bits", data.view(torch.int32))
        self.register_buffer("whole", data)
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("other_none", torch.zeros(0, 3, dtype=torch.int64))
        self.register_buffer("number", torch.tensor(3))
        self.register_buffer("wave", torch.randn(3, dtype=torch.complex64).conj())
        self.register_buffer("wide", torch.ones(1).expand(5))

    def forward(self, x):
        return self.tied(self.a(x))


def test_odd_tensors(tmp_path):
    odd = Odd()
    before = state(odd)
    sparsify.save(sparsify.apply(odd, {"schema": 1, "name": "none"}), tmp_path)
    _, found, _ = saved_folder.read(tmp_path, recipe.loads)
    assert found.keys() == before.keys()
    for name, value in before.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


class Extra(nn.Linear):
    """A layer with a state that is no tensor."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, _):
        pass


def test_states_that_are_not_saved(tmp_path):
    none = {"schema": 1, "name": "none"}
    wide = nn.Module()
    wide.register_buffer("wide", torch.zeros(2, dtype=torch.complex128))
    for source, words in [
        (Extra(2, 2), "_extra_state is dict, and only tensors are saved"),
        (nn.LazyLinear(3), "weight has no values yet"),
        (nn.Linear(2, 2, device="meta"), "weight is on the device meta, it has no values"),
        (wide, "wide is a tensor of torch.complex128, which is not saved"),
    ]:
        with pytest.raises(DataError, match=words):
            sparsify.save(sparsify.apply(source, none), tmp_path)
    with pytest.raises(DataError, match=r"Linear is no sparse model; save what sparsify.apply"):
        sparsify.save(nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


class Attention(nn.Module):
    """Attention of two heads with itself."""

    def forward(self, x):
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


def test_masks_of_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numpy.save("mask.npy", numpy.tril(numpy.ones((6, 6), dtype=bool)))
    rule = {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "from_file", "path": "mask.npy"}}
    sparse = sparsify.apply(Attention().eval(), {"schema": 1, "name": "masked", "sparsify": [rule]})
    sparsify.save(sparse, "model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = sparsify.load(tmp_path / "model", Attention().eval())
    assert loaded._request.recipe.rules[0].mask.path == str(tmp_path / "mask.npy")


def test_a_load_makes_saves_wait_when_each_attempt_failed(folder, monkeypatch):
    """A folder that is replaced during each read is read under the lock of saves in the end."""
    replacement, recipe_of, were_locked = applied(1), saved_folder._recipe, []

    def replaced(place, *given):
        found = recipe_of(place, *given)
        were_locked.append(is_locked(place))
        if not were_locked[-1]:
            sparsify.save(replacement, folder)
        return found

    monkeypatch.setattr(saved_folder, "_recipe", replaced)
    monkeypatch.setattr(saved_folder, "READS", 3)
    assert is_same(held(folder), state(replacement))
    assert were_locked == [False, False, True]


def is_locked(place):
    """Whether a save would wait."""
    directory = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(directory)
    return False
