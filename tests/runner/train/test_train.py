"""`sparsify train`: runs that stop and go on, curves, the table."""

import json
import os
import signal
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.errors import DataError, SparsifyError
from sparsify.models.data import sentences
from sparsify.runner.train import checkpoint, log, loop, prepare
from sparsify.runner.train.objective import States
from sparsify.runner.train.settings import resolve
from sparsify.runner.train.task import generator_of, moved, task_of

STEPS, STOP = 12, 7
GPT = {"layers": 1, "hidden": 64, "heads": 2, "context": 16, "dropout": 0.1}


@pytest.fixture(autouse=True)
def quiet():
    with options.override(quiet=True):
        yield


def settings(model="gpt", recipe="rigl90", **more):
    sizes = {"steps": STEPS, "batch_size": 4, "validate_every": 6, **more}
    keys = {"end": 9, "every": 3, **(GPT if model == "gpt" else {})}
    return resolve(model, recipe=recipe, overrides=keys, **sizes)


def state_of(trained):
    found = {name: value.detach() for name, value in trained.model.state_dict().items()}
    return {name: v.to_dense() if isinstance(v, sparsify.SparseTensor) else v for name, v in found.items()}


class Watched:
    """Keeps what `prepare` made."""

    def __init__(self, monkeypatch, way=None):
        self.made = []
        actual = prepare.prepare
        if way == "kernels":
            monkeypatch.setattr(prepare, "compared", lambda *_: (prepare.Times(2.0, 1.0), ""))
        if way == "turns":
            outcomes = [(None, "no kernel at first"), (prepare.Times(2.0, 1.0), "")]
            monkeypatch.setattr(prepare, "compared", lambda *_: outcomes.pop(0))
        if way == "masks":
            monkeypatch.setattr(prepare, "compared", lambda *_: (prepare.Times(1.0, 2.0), "it is slower"))

        def watched(*arguments):
            self.made.append(actual(*arguments))
            return self.made[-1]

        monkeypatch.setattr(loop, "prepare", watched)


def interrupt_at(monkeypatch, step):
    actual = loop.taken

    def taken(settings, trained, task, at):
        if at == step:
            os.kill(os.getpid(), signal.SIGINT)
        return actual(settings, trained, task, at)

    monkeypatch.setattr(loop, "taken", taken)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("way", ["kernels", "masks"])
@pytest.mark.parametrize("recipe", ["rigl90", "gmp90"])
def test_a_run_that_is_interrupted_goes_on_bit_for_bit(tmp_path, monkeypatch, way, recipe):
    watched = Watched(monkeypatch, way)
    asked = settings(recipe=recipe)
    whole = loop.run(asked, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, STOP)
        stopped = loop.run(asked, out=tmp_path / "parts")
    assert stopped.is_interrupted and stopped.exit_status == 130
    assert len(stopped.rows) == STOP
    resumed = loop.run(asked, out=tmp_path / "parts", resume=True)
    one, other = watched.made[0], watched.made[2]
    assert one.way == other.way
    if way == "kernels" and recipe == "rigl90":
        assert any(isinstance(p, sparsify.SparseTensor) for p in other.model.parameters())
    expected, found = state_of(one), state_of(other)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert one.pruner.masks.keys() == other.pruner.masks.keys()
    assert all(torch.equal(mask, other.pruner.masks[name]) for name, mask in one.pruner.masks.items())
    kept = ("step", "loss", "lr", "target", "actual", "val_loss", "val_accuracy")
    for first, second in zip(whole.rows, resumed.rows, strict=True):
        assert [getattr(first, name) for name in kept] == [getattr(second, name) for name in kept]
    moments = [trained.optimizer.state_dict()["state"] for trained in (one, other)]
    for first, second in zip(*(state.values() for state in moments), strict=True):
        dense = [
            v.to_dense() if isinstance(v, sparsify.SparseTensor) else v
            for v in (first["exp_avg"], second["exp_avg"])
        ]
        assert torch.equal(*dense)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "step", [4, 8, 10]
)  # before weights become sparse, afterwards, behind the next update
def test_dense_weights_become_sparse_where_the_zeros_suffice(tmp_path, monkeypatch, step):
    """A run goes on bit for bit, in dense steps and behind the turn to kernels: it takes those of the unbroken run."""
    asked = settings("lenet300", "gmp90", batch_size=8, save_every=1)
    with monkeypatch.context() as patch:
        watched = Watched(patch, "turns")
        whole = loop.run(asked, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        Watched(patch, "turns")
        interrupt_at(patch, step)
        loop.run(asked, out=tmp_path / "parts")
    again = Watched(monkeypatch)  # nothing is timed
    resumed = loop.run(asked, out=tmp_path / "parts", resume=True)
    one, other = watched.made[0], again.made[0]
    assert one.way == other.way == "turns"
    # Half of the time with a tenth of the entries: kernels from a fifth on, which the second of three updates leaves.
    assert whole.sparse_below == resumed.sparse_below == pytest.approx(0.2, abs=1e-3)
    assert whole.sparse_since == resumed.sparse_since == 7
    assert all(isinstance(p, sparsify.SparseTensor) for p in other.model.parameters() if p.dim() > 1)
    losses = [[row.loss for row in each.rows] for each in (whole, resumed)]
    assert losses[0] == losses[1]
    expected, found = state_of(one), state_of(other)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    validated = [[row.val_loss for row in each.rows if row.val_loss is not None] for each in (whole, resumed)]
    assert validated[0] == validated[1]
    assert "from step 7 on, the first one with 80.0 % zeros; median step" in str(whole)
    assert resumed.to_dict()["sparse_since"] == 7


@pytest.mark.sampled(3)
def test_weights_that_start_with_few_zeros_train_dense_until_there_are_more(monkeypatch):
    recipe = {
        "schema": 1,
        "name": "half",
        "sparsify": [
            {
                "targets": "param:*.weight",
                "prune": {"method": "gmp", "sparsity": 0.9},
                "schedule": {"from": 0.5, "end": 6, "every": 3},
            }
        ],
    }
    watched = Watched(monkeypatch, "turns")
    outcome = loop.run(resolve("lenet300", recipe=recipe, steps=8, batch_size=8))
    first = watched.made[0]
    assert first.reason == "" and outcome.sparse_since == 4  # 85 % zeros after three steps
    assert all(isinstance(p, sparsify.SparseTensor) for p in first.model.parameters() if p.dim() > 1)


def points(file):
    lines = ElementTree.parse(file).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    return [len((line.get("points") or "").split()) for line in lines][5:]  # behind the grid


@pytest.mark.sampled(3)
def test_files(tmp_path, monkeypatch):
    Watched(monkeypatch, "masks")
    outcome = loop.run(settings(), out=tmp_path)
    assert points(tmp_path / "loss.svg") == [STEPS, 2]
    assert points(tmp_path / "sparsity.svg") == [STEPS, STEPS]
    assert points(tmp_path / "churn.svg") == [3, 3]
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "step,loss,lr,ms,target,actual,val_loss,val_accuracy,val_cosine"
    assert len(rows) == STEPS + 1
    assert len(list(tmp_path.glob("step-*"))) == 1
    text = str(outcome)
    assert "12 of 12" in text and "it is slower" in text and "blocks.0.ffn.0.weight" in text
    shares = [one.share * one.shape[0] * one.shape[1] for one in outcome.zeros]
    total = sum(one.shape[0] * one.shape[1] for one in outcome.zeros)
    assert sum(shares) / total == pytest.approx(0.9, abs=1e-3)
    assert outcome.to_dict()["times"] == {"dense_ms": 1.0, "sparse_ms": 2.0, "ratio": 0.5}


@pytest.mark.sampled(2)
def test_sparsity_follows_its_target(tmp_path):
    outcome = loop.run(settings("lenet300", "gmp90", batch_size=8))
    assert [row.target for row in outcome.rows[:2]] == [0.0, 0.0]
    assert outcome.rows[-1].target == 0.9
    assert all(row.actual == pytest.approx(row.target, abs=1e-3) for row in outcome.rows)


@pytest.mark.sampled(2)
def test_training_learns():
    outcome = loop.run(
        resolve("lenet300", recipe="set90", overrides={"end": 45, "every": 15}, steps=60, lr=3e-3)
    )
    assert outcome.rows[-1].loss < 0.7 * outcome.rows[0].loss
    assert outcome.validated.val_accuracy > 0.5


@pytest.mark.parametrize("model, sizes", [
    ("lenet5", (4, 1, 28, 28)), ("mlp", (4, 784)), ("resnet20", (4, 3, 32, 32)), ("gpt", (4, 16))])  # fmt: skip
def test_batches_are_a_function_of_seed_and_step(model, sizes):
    keys = GPT if model == "gpt" else {"hidden": 8} if model == "mlp" else {}
    asked = resolve(model, overrides=keys, batch_size=4)
    other = resolve(model, overrides=keys, batch_size=4, seed=1)
    one, two, seeded = (task_of(each, prepare.new_model(each)) for each in (asked, asked, other))
    one.batch(1)
    assert one.batch(5)[0].shape == sizes
    assert all(torch.equal(a, b) for a, b in zip(one.batch(5), two.batch(5), strict=True))
    assert not torch.equal(one.batch(5)[0], one.batch(6)[0])
    assert not torch.equal(one.batch(5)[0], seeded.batch(5)[0])


def test_an_epoch_has_each_image_once():
    asked = resolve("lenet5", batch_size=500)
    task = task_of(asked, prepare.new_model(asked))
    assert task.epoch == 4
    sums = [task.batch(at)[0].double().sum() for at in range(1, 5)]
    assert float(sum(sums)) == pytest.approx(float(task.data.train[0].double().sum()), rel=1e-9)


def test_moved_images_are_parts_of_padded_ones():
    pixels = torch.rand(6, 2, 5, 5)
    found = moved(pixels, generator_of(0, "x", 1))
    padded = torch.nn.functional.pad(pixels, (4,) * 4)
    for image, result in zip(padded, found, strict=True):
        cuts = [image[:, i : i + 5, j : j + 5] for i in range(9) for j in range(9)]
        assert any(torch.equal(result, each) for cut in cuts for each in (cut, cut.flip(2)))


def test_the_label_of_a_token_is_the_next_one(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(256)) * 4)
    asked = resolve("gpt", overrides=GPT, text=file, batch_size=2)
    inputs, labels = task_of(asked, prepare.new_model(asked)).batch(3)
    assert torch.equal((inputs + 1) % 256, labels)


@pytest.mark.sampled(2)
def test_checkpoints_of_other_settings(tmp_path, monkeypatch):
    Watched(monkeypatch, "masks")
    loop.run(settings(), out=tmp_path)
    with pytest.raises(SparsifyError, match="--resume goes on from it"):
        loop.run(settings(), out=tmp_path)
    with pytest.raises(SparsifyError, match=r"another setting: seed 0, not 1"):
        loop.run(settings(seed=1), out=tmp_path, resume=True)
    with pytest.raises(SparsifyError, match="has no checkpoint to resume"):
        loop.run(settings(), out=tmp_path / "none", resume=True)
    found = checkpoint.newest(tmp_path)
    (found.place / checkpoint.WEIGHTS).write_bytes(b"x")
    with pytest.raises(DataError, match="cannot read"):
        loop.run(settings(), out=tmp_path, resume=True)
    (found.place / checkpoint.STATE).write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        loop.run(settings(), out=tmp_path, resume=True)


@pytest.mark.sampled(2)
def test_checkpoints_of_an_older_version_go_on(tmp_path, monkeypatch):
    """Settings, columns of the log and states that came later are missing in them."""
    asked = settings("lenet300", "gmp90", batch_size=8, save_every=1)
    with monkeypatch.context() as patch:
        Watched(patch, "turns")
        interrupt_at(patch, 10)
        loop.run(asked, out=tmp_path)
    place = checkpoint.newest(tmp_path).place
    state = json.loads((place / checkpoint.STATE).read_text())
    del state["settings"]["teacher"]
    for row in state["rows"]:
        del row["val_cosine"]
    (place / checkpoint.STATE).write_text(json.dumps(state))
    pruner = torch.load(place / checkpoint.PRUNER, weights_only=True)
    del pruner["turn_masks"]
    torch.save(pruner, place / checkpoint.PRUNER)
    resumed = loop.run(asked, out=tmp_path, resume=True)
    assert resumed.sparse_since == 7 and len(resumed.rows) == STEPS
    with pytest.raises(SparsifyError, match="another setting: teacher '', not 'dense'"):
        loop.run(replace(asked, teacher="dense"), out=tmp_path, resume=True)


def test_a_loss_that_is_not_finite(monkeypatch):
    asked = settings("lenet300", batch_size=8, lr=1e30)
    with pytest.raises(SparsifyError, match=r"the loss of step \d+ is (nan|inf); a smaller --lr than 1e\+30"):
        loop.run(asked)


@pytest.mark.sampled(2)
def test_schedules_that_end_after_the_training():
    outcome = loop.run(resolve("lenet300", recipe="gmp90", steps=2, batch_size=8))
    assert "ends at step 7500, after the last of 2 steps" in str(outcome)
    assert resolve("lenet300", recipe="gmp90").steps == 10000


def test_the_dense_model_has_no_zeros(tmp_path):
    outcome = loop.run(settings("lenet300", dense=True, batch_size=8), out=tmp_path)
    assert outcome.way == "dense" and outcome.zeros == []
    assert points(tmp_path / "churn.svg") == [0, 0]
    assert "zeros" not in str(outcome)


def test_long_curves_are_thinned():
    rows = [log.Row(step, 1.0 / step, 0.1, 1.0) for step in range(1, 5001)]
    root = ElementTree.fromstring(log.losses(rows))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")[5].get("points").split()) == log.POINTS


def test_a_device_that_is_not_there():
    with pytest.raises(SparsifyError, match="--device cuda:99: torch cannot use it here"):
        settings(device="cuda:99")
    with pytest.raises(SparsifyError, match="--device nowhere"):
        settings(device="nowhere")


@pytest.mark.sampled(3)
def test_a_device_without_kernels_trains_under_masks(monkeypatch):
    """Batches and model are moved, and the losses are those of the CPU under masks."""
    asked = settings(dataset="synthetic")
    expected = [row.loss for row in loop.run(replace(asked, device="cpu")).rows]
    moved_to = []
    original = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda self, *args, **kwargs: (moved_to.append(args), original(self, *args, **kwargs))[1],
    )
    found = loop.run(replace(asked, device="cpu:0"))
    assert found.way == "masks"
    assert "the training on cpu:0" in found.reason
    assert ("cpu:0",) in moved_to
    torch.testing.assert_close([row.loss for row in found.rows], expected, rtol=1e-5, atol=1e-6)


MINILM = {"weights": "random", "layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "vocabulary": 50}


def encoder_settings(**more):
    keys = {"sparsity": 0.8, "end": 4, "every": 2, **MINILM}
    return resolve(
        "minilm", recipe="gmp90", overrides=keys, **{"steps": 6, "batch_size": 4, "seq": 8, **more}
    )


@pytest.mark.sampled(4)
def test_an_encoder_learns_from_its_dense_model(tmp_path):
    pytest.importorskip("transformers")
    asked = encoder_settings(steps=40, lr=1e-2)
    assert asked.teacher == "dense"
    first = loop.run(encoder_settings(steps=4, lr=1e-6), out=tmp_path / "first")
    outcome = loop.run(asked, out=tmp_path / "last")
    assert outcome.validated.val_accuracy is None
    assert first.validated.val_cosine < outcome.validated.val_cosine <= 1
    assert "validation cosine" in str(outcome)
    assert all(zeros.share == pytest.approx(0.8, abs=0.01) for zeros in outcome.zeros)


def test_the_dense_model_is_its_own_teacher():
    pytest.importorskip("transformers")
    asked = encoder_settings(dense=True)
    net = prepare.new_model(asked)
    loss, cosine = loop.validate(net, task_of(asked, net))
    assert loss == pytest.approx(0, abs=1e-6)
    assert cosine == pytest.approx(1, abs=1e-6)


def test_a_dense_teacher_with_random_weights():
    asked = settings("lenet300", "gmp90", batch_size=8, teacher="dense")
    with pytest.warns(RuntimeWarning, match="the weights of lenet300 are random"):
        task_of(asked, prepare.new_model(asked))


def test_padding_does_not_change_the_loss():
    states, taught = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)).split(1)
    states, taught = states[0], taught[0]
    counts = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    other = torch.where(counts[..., None], states, 7.0)
    objective = States()
    assert torch.equal(objective.loss(states, (taught, counts)), objective.loss(other, (taught, counts)))
    total, texts = objective.agreement(other, (taught, counts))
    vectors = [
        (one[:length].mean(0), two[:length].mean(0))
        for one, two, length in zip(states, taught, (3, 2, 1), strict=True)
    ]
    expected = sum(torch.cosine_similarity(one, two, dim=0) for one, two in vectors)
    assert texts == 3 and total == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.sampled(2)
def test_a_teacher_of_an_earlier_training(tmp_path):
    trained = loop.run(settings("lenet300", dense=True, batch_size=8), out=tmp_path / "dense")
    assert trained.validated is not None
    asked = settings("lenet300", "gmp90", batch_size=8, teacher=tmp_path / "dense")
    net = prepare.new_model(asked)
    task = task_of(asked, net)
    stored = sparsify.training.load_file(checkpoint.newest(tmp_path / "dense").place / checkpoint.WEIGHTS)
    assert all(torch.equal(stored[name], value) for name, value in task.teacher.state_dict().items())
    inputs, (taught, classes) = task.batch(2)
    assert torch.equal(taught, task.teacher(inputs))
    assert torch.equal(classes, task.task.batch(2)[1])
    assert float(task.objective.loss(taught, (taught, classes))) == pytest.approx(0, abs=1e-6)
    assert task.objective.agreement(taught, (taught, taught.argmax(-1))) == (8, 8)
    outcome = loop.run(asked)
    assert outcome.validated.val_accuracy is not None


@pytest.mark.parametrize("other", [{}, {"layers": 3}])
def test_teachers_that_are_not_there(tmp_path, other):
    folder = tmp_path / "none"
    text = "there is no checkpoint in it"
    if other:
        loop.run(settings(dense=True, steps=2, seq=8), out=folder)
        text = "its checkpoint is not of this model"
    asked = resolve("gpt", overrides={**GPT, **other}, steps=2, seq=8, batch_size=2, teacher=folder)
    with pytest.raises(DataError, match=text):
        task_of(asked, prepare.new_model(asked))


def test_texts_of_a_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "."]
    model = tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "lines.txt"
    file.write_text("The quick fox.\n\nthe lazy dog jumps over a fox .\n" * 10, encoding="utf-8")
    found = sentences(str(file), None, tmp_path / "tokenizer.json", 6, len(words))
    assert [len(part[1]) for part in (found.train, found.val)] == [18, 2]
    assert found.train[0][:2].tolist() == [[0, 2, 4, 10, 0, 0], [1, 8, 9, 5, 6, 7]]
    assert found.train[1][:2].tolist() == [4, 6]
    with pytest.raises(DataError, match=r"there is no tokenizer"):
        sentences(str(file), None, tmp_path / "none.json", 6, len(words))
    with pytest.raises(DataError, match="cannot be read"):
        sentences(str(tmp_path / "none.txt"), None, tmp_path / "tokenizer.json", 6, len(words))
    with pytest.raises(DataError, match=r"texts is not here: looked for ag_news_csv, imdb_csv"):
        sentences("texts", tmp_path, tmp_path / "tokenizer.json", 6, len(words))
