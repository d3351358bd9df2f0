"""Random models over the operator table: operators, shapes, dtypes and sparse leaves are drawn from a seed.

In: `drawn(7)`. Out: a `Drawn` with a text that says what it computes, and `dense` and `sparse` instances of it:

    t0 = aten.mul(x0, x1); t1 = aten.sum(t0, [-1])    x0: input float64[5, 8] in csr; x1: param float64[8]

Each step is an example of a row of the table, so a new row is drawn without a change here: an argument is a tensor
that is there and fits the shape of the example, or a new leaf. Numbers of examples are changed where torch takes it.
"""

import random
import re
import warnings
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparsify
from sparsify.errors import CaptureError, UnsupportedOperatorError, VerificationError
from sparsify.passes.program.table import ROWS

TENSOR = re.compile(r"\b([a-z]\w*)\[([\w+*,]*)\](?::(\w+))?(?=[,)\]])")
LETTER = re.compile(r"(?<![\w'\"])([mnkpl])\b(?!\s*=)")
NUMBER = re.compile(r"(?<![\w.'\"-])-?\d+(?![\w.])")
EXTENTS = ([5, 8], [5, 5, 6], [1, 3, 5, 6], [33, 8], [2, 3, 4, 5, 6, 7], [0, 4, 5], [16], [5, 6], [5, 7, 9])
LARGEST, HIGHEST_RANK = 6000, 4
FORMATS = {
    1: ("auto", "compressed"),
    2: ("csr", "csc", "coo", "dcsr", "dcsc", "bcsr(2, 2)", "ell", "dense, compressed", "auto"),
    3: (
        *("csf", "coo", "dense, compressed, compressed", "dense, dense, compressed"),
        *("compressed, dense, dense", "dense, compressed, dense", "auto"),
    ),
    4: ("coo", "csf", "auto"),
}
LAYOUTS = ("csr", "csc", "coo", "bsr")
# Operators by which torch ends the process for tensors without entries: it divides by their number, in gradients too,
# or reads statistics that are not there.
NOT_EMPTY = ("window", "normalise")
# Relative noise after each step that tells how much rounding may change a result.
NOISE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}
SCOPE = {
    "aten": torch.ops.aten,
    "torch": torch,
    "inf": float("inf"),
    "abs": torch.abs,
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True)
class Leaf:
    """A tensor that a model is given.

    Attributes:
        kind: `input`, `param`, `sparsify`, a layout of torch, or `places` below `most`.
        dtype: `None`: the model's.
        density: of stored entries.
        form: in which a rule declares it sparse; empty: no rule.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    density: float = 1.0
    form: str = ""
    most: int = 0
    is_differentiable: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} {self.dtype or ''}{list(self.shape)} {self.density} {self.form}"


@dataclass(frozen=True)
class Step:
    """`name = text`, text over the names of leaves and of earlier steps."""

    name: str
    text: str
    read: tuple[str, ...]

    @property
    def function(self):
        return compiled(f"lambda {', '.join(dict.fromkeys(self.read))}: {self.text}")

    def run(self, known):
        return self.function(*(known[name] for name in dict.fromkeys(self.read)))


@cache
def compiled(text):
    return eval(text, dict(SCOPE))


class Model(nn.Module):
    """The steps one after the other; parameters are the leaves of this kind."""

    def __init__(self, drawn, values):
        super().__init__()
        self.drawn = drawn
        for leaf in drawn.leaves:
            if leaf.kind == "param":
                self.register_parameter(leaf.name, nn.Parameter(values[leaf.name].clone()))

    def computed(self, given, noise=0.0, generator=None):
        known = dict(given)
        for leaf in self.drawn.leaves:
            known[leaf.name] = shaken(known.get(leaf.name, getattr(self, leaf.name, None)), noise, generator)
        for step in self.drawn.steps:
            known[step.name] = shaken(step.run(known), noise, generator)
        return tuple(known[name] for name in self.drawn.outputs)


def shaken(tensor, noise, generator):
    """A tensor with relative noise; zeros stay but for their sign, which what is not stored does not have."""
    if not noise or not tensor.is_floating_point():
        return tensor
    sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2.0 - 1
    return torch.where(tensor == 0, tensor.abs() * sign.to(tensor.dtype), tensor) * (
        1 + noise * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    )


@dataclass(frozen=True)
class Drawn:
    """A random model."""

    seed: int
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    dtype: torch.dtype
    is_trained: bool

    def __str__(self) -> str:
        steps = "\n".join(f"  {step.name} = {step.text}" for step in self.steps)
        leaves = "\n".join(f"  {leaf}" for leaf in self.leaves)
        head = f"seed {self.seed}, {self.dtype}{', trained' * self.is_trained}"
        return f"{head}\n{leaves}\n{steps}\n  return {', '.join(self.outputs)}"

    def values(self, turn=0):
        """Dense values of all leaves in float64; those of another turn have other zeros."""
        generator = torch.Generator().manual_seed(self.seed * 7 + turn)
        return {leaf.name: value_of(leaf, generator) for leaf in self.leaves}

    def model(self, values, dtype):
        """The model, its forward with a parameter for each leaf that is an input, which rules name."""
        names = [leaf.name for leaf in self.leaves if leaf.kind != "param"]
        scope: dict = {}
        exec(
            f"def forward(self, {', '.join(names)}):\n"
            f"    return self.computed({{{', '.join(f'{n!r}: {n}' for n in names)}}})",
            scope,
        )
        own = type("Random", (Model,), {"forward": scope["forward"]})
        return own(self, {name: cast(value, dtype) for name, value in values.items()}).train(self.is_trained)

    @property
    def recipe(self):
        rules = []
        for leaf in self.leaves:
            if leaf.form:
                kind = "param" if leaf.kind == "param" else "input"
                role = "weight" if kind == "param" else "adjacency"
                rules.append(
                    {
                        "targets": [f"{kind}:{leaf.name}"],
                        "source": "given",
                        "format": leaf.form,
                        "role": role,
                        "optional": True,
                    }
                )
        return {"schema": 1, "name": "random", "sparsify": rules, "verify": {"rtol": 1e30, "atol": 1e30}}

    def given(self, values, dtype, *, is_sparse):
        """The inputs of a call; sparse ones in their layouts, or all dense."""
        found = []
        for leaf in self.leaves:
            if leaf.kind == "param":
                continue
            value = cast(values[leaf.name], dtype)
            if is_sparse and leaf.kind == "sparsify":
                value = sparsify.tensor(value, leaf.form if leaf.form != "auto" else "csr")
            elif is_sparse and leaf.kind in LAYOUTS:
                value = getattr(value, f"to_sparse_{leaf.kind}")(*[(1, 1)] * (leaf.kind == "bsr"))
            elif leaf.is_differentiable and self.is_trained:
                value = value.clone().requires_grad_()
            found.append(value)
        return found


def cast(value, dtype):
    return value.to(dtype) if value.is_floating_point() else value


def value_of(leaf, generator):
    """A dense value of a leaf."""
    if leaf.kind == "places":
        return torch.randint(0, leaf.most, leaf.shape, generator=generator)
    value = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    stored = torch.rand(leaf.shape, generator=generator) < leaf.density
    if leaf.dtype is torch.bool:
        return stored & (value > 0) if leaf.form else value > 0
    if leaf.dtype is torch.int64:
        return (value * 3).long() * stored
    return torch.where(stored, value, 0.0)


@dataclass
class Draw:
    """A model while it is drawn: it is computed step by step, so that only what torch can compute is added."""

    seed: int
    draw: random.Random = field(init=False)
    leaves: list[Leaf] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    known: dict[str, torch.Tensor] = field(default_factory=dict)
    sparse: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.draw = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.extents = self.draw.choice(EXTENTS)
        self.density = self.draw.choice([0.0, 0.1, 0.1, 0.3, 0.3, 1.0])

    def leaf(self, shape, kind=None, most=0):
        """The name of a new leaf."""
        draw, name = self.draw, f"x{len(self.leaves)}"
        if most:
            form = "csr" if draw.random() < 0.5 else ""
            made = Leaf(name, "places", shape, torch.int64, form=form, most=most)
        else:
            form, layout, dtype = "", draw.choice(["input", "input", "param"]), None
            if shape and len(shape) in FORMATS and draw.random() < (0.35 if kind is None else 0.2):
                form = draw.choice(FORMATS[len(shape)])
                if len(shape) == 2 and layout == "input" and kind is None and draw.random() < 0.4:
                    layout = draw.choice(["sparsify", *LAYOUTS])
            if kind == "bool":
                layout, dtype = "input", torch.bool
            elif layout == "input" and draw.random() < 0.05:
                dtype = torch.int64
            differentiable = layout == "input" and dtype is None and draw.random() < 0.7
            made = Leaf(
                name,
                layout,
                shape,
                dtype,
                self.density if form else 1.0,
                form,
                is_differentiable=differentiable,
            )
        self.put(made)
        return name

    def put(self, leaf):
        """Adds a leaf."""
        self.leaves.append(leaf)
        self.known[leaf.name] = value_of(leaf, self.generator)
        if leaf.form:
            self.sparse.add(leaf.name)

    def shape(self, rank):
        return tuple(self.draw.choice(self.extents) for _ in range(rank))

    def add_step(self):
        """Adds a step where the draw fits; whether it did."""
        draw = self.draw
        row = ROWS[draw.choice(OPERATORS[draw.choice(SECTIONS)])]
        example = draw.choice(row.examples)
        slots = {
            match[1]: (split(match[2]), match[3] or "")
            for match in TENSOR.finditer(example.replace(" ", "") if "einsum" not in example else example)
        }
        if not slots:
            return False
        leaves, known = list(self.leaves), dict(self.known)
        names = self.arguments(row, slots)
        # Torch reads beyond the end of offsets that are none.
        text = self.text(example, *names, is_changed=row.section != "window" and "arange" not in example)
        if row.section in NOT_EMPTY and any(0 in self.known[name].shape for name in names[0].values()):
            text = None
        if text is not None:
            step = Step(
                f"t{len(self.steps)}", text, tuple(n for n in self.known if re.search(rf"\b{n}\b", text))
            )
            try:
                value = step.run(self.known)
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                value = None
            if self.is_fine(value):
                self.steps.append(step)
                self.known[step.name] = value.detach()
                if self.sparse.intersection(step.read):
                    self.sparse.add(step.name)
                return True
        self.leaves, self.known = leaves, known
        return False

    def is_fine(self, value):
        if (
            not isinstance(value, torch.Tensor)
            or value.dim() > HIGHEST_RANK
            or value.numel() > LARGEST
            or value.is_complex()
        ):
            return False
        if not value.is_floating_point():
            return True
        is_calm = bool((value[value.isfinite()].abs() < 1e4).all())
        return (
            is_calm
            and not bool(value.isnan().any())
            and (bool(value.isfinite().all()) or self.draw.random() < 0.2)
        )

    def arguments(self, row, slots):
        """A tensor for each slot of an example, and the extents of its letters."""
        draw, sizes, names = self.draw, {}, {}
        first = draw.choice(list(slots))
        order = [first, *(slot for slot in slots if slot != first)]
        is_free = row.section == "pointwise"
        for slot in order:
            spec, kind = slots[slot]
            fitting = [
                n
                for n in self.known
                if self.is_fitting(n, spec, kind, dict(sizes), slot == first, row.section)
            ]
            if kind not in ("", "bool"):
                found = None
            elif is_free and slot != first:
                shape = tuple(self.known[names[first]].shape)
                fitting = [
                    n
                    for n in self.known
                    if is_kind(self.known[n], kind) and is_broadcast(tuple(self.known[n].shape), shape)
                ]
                found = self.late(fitting) if fitting and draw.random() < 0.7 else None
                if found is None:
                    cut = shape[draw.randint(0, len(shape)) :] if draw.random() < 0.5 else shape
                    found = self.leaf(tuple(1 if draw.random() < 0.15 else s for s in cut), kind or None)
            else:
                found = (
                    self.late(fitting)
                    if fitting and draw.random() < (0.9 if slot == first else 0.5)
                    else None
                )
            if found is None:
                for letter in letters(spec):
                    sizes.setdefault(letter, draw.choice(self.extents))
                if kind not in ("", "bool"):
                    sizes.setdefault(kind, draw.choice(self.extents))
                shape = tuple(extent(part, sizes) for part in spec)
                found = self.leaf(shape, kind or None, sizes[kind] + 1 if kind not in ("", "bool") else 0)
            if not is_free and len(self.known[found].shape) == len(spec):
                matched(spec, self.known[found].shape, sizes)
            names[slot] = found
        for letter in "mnkpl":
            sizes.setdefault(letter, draw.choice(self.extents))
        return names, sizes

    def late(self, names):
        """One of some names, rather the last one, or one that follows from a sparse leaf."""
        following = [name for name in names if name in self.sparse]
        if following and self.draw.random() < 0.8:
            names = following
        return names[-1] if self.draw.random() < 0.4 else self.draw.choice(names)

    def is_fitting(self, name, spec, kind, sizes, is_first, section):
        tensor = self.known[name]
        if not is_kind(tensor, kind):
            return False
        if is_first and section == "pointwise":
            return True
        if (
            is_first
            and section in ("reduce", "view", "loss", "normalise")
            and tensor.dim() > len(spec)
            and self.draw.random() < 0.3
        ):
            return True
        return matched(spec, tensor.shape, sizes)

    def text(self, example, names, sizes, *, is_changed):
        """An example with tensors, extents and, here and there, other numbers."""
        if "einsum" not in example:
            example = example.replace(" ", "")
        text = TENSOR.sub(lambda m: f"<{m[1]}>", example)
        text = LETTER.sub(lambda m: str(sizes[m[1]]), text)
        head, bracket, rest = text.partition("(")
        if "einsum" not in example and is_changed:
            rest = NUMBER.sub(
                lambda m: str(self.draw.randint(-3, 3)) if self.draw.random() < 0.25 else m[0], rest
            )
        for slot, name in names.items():
            rest = rest.replace(f"<{slot}>", name)
        return f"aten.{head}{bracket}{rest}"


OPERATORS: dict[str, list[str]] = {}
for _name, _row in ROWS.items():
    is_spelling = _name.startswith("__") or _name == "_safe_softmax"  # of an operator that has another name
    is_unsafe = _name == "embedding_bag"  # torch reads out of bounds at offsets that other numbers make
    if not is_spelling and not is_unsafe and any(TENSOR.search(example) for example in _row.examples):
        OPERATORS.setdefault(_row.section, []).append(_name)
SECTIONS = [*OPERATORS, "pointwise", "pointwise", "contract", "contract", "view", "reduce", "relation"]


def split(shape):
    return tuple(part for part in shape.split(",") if part)


def letters(spec):
    return [c for part in spec for c in part if c.isalpha()]


def extent(part, sizes):
    return int(eval(part, {}, dict(sizes)))


def matched(spec, shape, sizes):
    """Whether a shape is that of a slot; `sizes` gets the extents of its letters."""
    if len(spec) != len(shape):
        return False
    for part, size in zip(spec, shape, strict=True):
        letter = next((c for c in part if c.isalpha()), None)
        if letter is not None and letter not in sizes:
            if part == letter:
                sizes[letter] = size
            elif "+" in part:
                rest = part.partition("+")[2]
                for other in letters([rest]):
                    sizes.setdefault(other, 0)
                sizes[letter] = size - extent(rest, sizes)
            else:
                sizes[letter] = size // int(part.partition("*")[0])
            if sizes[letter] < 0:
                return False
        if extent(part, sizes) != size:
            return False
    return True


def is_kind(tensor, kind):
    return (tensor.dtype is torch.bool) if kind == "bool" else kind == ""


def is_broadcast(small, shape):
    return len(small) <= len(shape) and all(
        a in (1, b) for a, b in zip(small[::-1], shape[::-1], strict=False)
    )


def drawn(seed):
    """A random model, the same for the same seed and table."""
    made = Draw(seed)
    draw = made.draw
    wanted = draw.randint(2, 8)
    first = made.shape(draw.choice([2, 2, 2, 3]))
    form = draw.choice(FORMATS[len(first)])
    kind = (
        draw.choice(["input", "input", "param", "sparsify", *LAYOUTS])
        if len(first) == 2
        else draw.choice(["input", "param"])
    )
    made.put(Leaf("x0", kind, first, None, made.density, form))
    with torch.no_grad():
        for _ in range(40 * wanted):
            if len(made.steps) == wanted:
                break
            made.add_step()
    behind = {name for step in made.steps for name in step.read}
    outputs = [step.name for step in made.steps if step.name not in behind]
    outputs = ([name for name in outputs if name in made.sparse] or outputs)[-3:]
    dtype = draw.choices([torch.float64, torch.float32, torch.bfloat16], [70, 27, 3])[0]
    found = Drawn(seed, tuple(made.leaves), tuple(made.steps), tuple(outputs), dtype, draw.random() < 0.5)
    return possible(without_unread(found))


def possible(found):
    """A model that torch can compute dense: in float64 and without gradients where nothing else works."""
    frozen = tuple(
        replace(leaf, kind="input" if leaf.kind == "param" else leaf.kind) for leaf in found.leaves
    )
    frozen = tuple(replace(leaf, is_differentiable=False) for leaf in frozen)
    others = ({}, {"is_trained": False}, {"is_trained": False, "leaves": frozen})
    for change in (*others, {**others[2], "dtype": torch.float64}):
        other = replace(found, **change)
        values = other.values()
        try:
            for dtype in {other.dtype, torch.float64}:
                given = other.given(values, dtype, is_sparse=False)
                model = other.model(values, dtype)
                gradients(model(*given), model, given)
            model(*other.given(other.values(1), other.dtype, is_sparse=False))
        except (RuntimeError, NotImplementedError, IndexError):
            continue
        return other
    return drawn(found.seed + 10**7)  # places out of bounds with other values


def without_unread(found):
    """A model without steps and leaves that no output follows from."""
    needed, steps = set(found.outputs), []
    for step in reversed(found.steps):
        if step.name in needed:
            steps.insert(0, step)
            needed.update(step.read)
    return replace(
        found, steps=tuple(steps), leaves=tuple(leaf for leaf in found.leaves if leaf.name in needed)
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a model that computes the same sparse as dense.

    Attributes:
        regions: their number.
        gradients: the number of tensors whose gradients were compared.
        refused: why the model was not applied; such as an operator that knows no sparse tensors.
    """

    regions: int
    gradients: int = 0
    refused: str = ""


def outcome(found):
    """Compares a sparse model with the dense one in float64: two calls with other zeros, and gradients.

    Raises:
        AssertionError: they differ, or an error that is none of the package's own.
    """
    exact = [found.values(turn) for turn in range(2)]
    first = found.values()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = found.model(first, found.dtype)
            given = found.given(first, found.dtype, is_sparse=True)
            applied = sparsify.apply(model, found.recipe, tuple(given))
            results = [applied(*found.given(values, found.dtype, is_sparse=True)) for values in exact]
    except CaptureError as error:
        return Outcome(0, refused=str(error).splitlines()[0])
    except VerificationError as error:
        if not has_nan_gradients(found, first):
            raise
        return Outcome(0, refused=str(error).splitlines()[0])
    for turn, (values, result) in enumerate(zip(exact, results, strict=True)):
        fixed = {leaf.name: first[leaf.name] for leaf in found.leaves if leaf.kind == "param"}
        values.update(fixed)
        wanted, *others = computed(found, values)
        for place, have in enumerate(result):
            same(
                have,
                wanted[place],
                [other[place] for other in others],
                found,
                f"result {place} of call {turn}",
            )
    count = compare_gradients(found, model, applied, first) if found.is_trained else 0
    return Outcome(len(applied.report.regions), count)


def has_nan_gradients(found, values):
    """Whether gradients of the dense model are NaN, as torch's are for 0 times infinity: they cannot be verified."""
    model, given = found.model(values, found.dtype), found.given(values, found.dtype, is_sparse=False)
    known = gradients(model(*given), model, given) if found.is_trained else None
    return any(bool(g.isnan().any()) for g in (known or {}).values())


def computed(found, values):
    """The results of the dense model in float64, and those with noise after each step."""
    model = found.model(values, torch.float64)
    given = dict(
        zip(
            model.forward.__code__.co_varnames[1:],
            found.given(values, torch.float64, is_sparse=False),
            strict=False,
        )
    )
    generator = torch.Generator().manual_seed(found.seed)
    with torch.no_grad():
        results = [model.computed(given, noise, generator) for noise in (0.0, *[noise_of(found)] * 4)]
    # Rounding where operators cancel, as a distance by products does.
    own = found.model(values, found.dtype)
    with torch.no_grad():
        return [*results, own(*found.given(values, found.dtype, is_sparse=False))]


@cache
def noise_of(found):
    """The relative error of a step: that of float32 where one computes in it, as functions of whole numbers do."""
    mode = Dtypes()
    with mode:
        evaluated(found)
    known = {found.dtype, *mode.known}
    if any("hardsigmoid" in step.text for step in found.steps):
        known.add(torch.float32)  # torch's gradient of float64 multiplies by a sixth in float32
    return max(NOISE.get(dtype, 0.0) for dtype in known)


class Dtypes(TorchDispatchMode):
    """Collects the dtypes of all that torch computes."""

    def __init__(self):
        super().__init__()
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.known.update(part.dtype for part in tree_leaves(result) if isinstance(part, torch.Tensor))
        return result


def same(have, want, shaken_ones, found, what):
    """Asserts that a result is as near as noise after each step leaves it, where the dense one is finite."""
    have = have.to_dense() if have.layout is not torch.strided or type(have) is not torch.Tensor else have
    assert have.shape == want.shape, f"{what} is {list(have.shape)}, not {list(want.shape)}"
    expected = want.dtype if want.dtype is not torch.float64 else found.dtype
    assert have.dtype is expected or want.is_floating_point(), f"{what} is {have.dtype}, not {want.dtype}"
    have, want = have.detach().double(), want.double()
    moved = torch.stack([(want - other.double()).abs() for other in shaken_ones]).nan_to_num(0, 0, 0).amax(0)
    if moved.numel() == 0:
        return
    finite = want.isfinite()
    bound = 20 * noise_of(found) * (1 + want.abs()) + 30 * moved.amax()
    wrong = finite & ~((have - want).abs() <= bound)
    where = wrong.nonzero()[:4].tolist()
    assert not where, f"{what} differs: {have[wrong][:4]}, not {want[wrong][:4]} at {where}"


def compare_gradients(found, model, applied, values):
    """The number of tensors whose gradients agree with those of the dense model in float64."""
    generator = torch.Generator().manual_seed(found.seed)
    exact = found.model(values, torch.float64)
    dense = found.given(values, torch.float64, is_sparse=False)
    names = [leaf.name for leaf in found.leaves if leaf.kind != "param"]
    wanted = [
        gradients(exact.computed(dict(zip(names, dense, strict=True)), noise, generator), exact, dense)
        for noise in (0.0, *[noise_of(found)] * 4)
    ]
    if wanted[0] is None:
        return 0
    # Rounding where gradients cancel, as those of a normalisation do.
    own, given = found.model(values, found.dtype), found.given(values, found.dtype, is_sparse=False)
    rounded = gradients(own(*given), own, given)
    wanted.append({name: rounded[name].double() if name in rounded else g for name, g in wanted[0].items()})
    given = found.given(values, found.dtype, is_sparse=True)
    try:
        have = gradients(applied(*given), applied, given)
    except (UnsupportedOperatorError, RuntimeError):
        if applied.report.regions:
            raise  # else of a sparse input in a model that is not captured
        return 0
    assert have is not None, "no result requires a gradient"
    assert have.keys() == wanted[0].keys() or not any(
        g.any() for k, g in wanted[0].items() if k not in have
    ), f"gradients of {have.keys()}, not of {wanted[0].keys()}"
    declared = {leaf.name for leaf in found.leaves if leaf.kind == "param" and leaf.form}
    for name, gradient in have.items():
        if name not in wanted[0]:
            assert not gradient.any(), f"gradient of {name}"
            continue
        want, *others = [every[name] for every in wanted]
        if name in declared:  # pruned weights stay zero where they are
            stored = values[name] != 0
            gradient, want, *others = (g * stored for g in (gradient, want, *others))
        same(gradient, want, others, found, f"gradient of {name}")
    return len(have)


def gradients(results, model, given):
    """By name the gradients of a sum of results."""
    total = sum(
        r.double().sum()
        if r.layout is torch.strided and type(r) is torch.Tensor
        else r.to_dense().double().sum()
        for r in results
        if r.requires_grad
    )
    if not isinstance(total, torch.Tensor):
        return None
    tensors = dict(model.named_parameters()) | {str(n): t for n, t in enumerate(given) if t.requires_grad}
    found = torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


def shrunk(found, fails):
    """The smallest model that still fails: fewer results, and leaves in place of steps."""
    changed = True
    while changed:
        changed = False
        for other in smaller(found):
            if fails(other):
                found, changed = other, True
                break
    return found


def smaller(found):
    """Models with one result, step or rule less."""
    if len(found.outputs) > 1:
        for name in found.outputs:
            yield without_unread(replace(found, outputs=(name,)))
    for place in reversed(range(len(found.steps) - 1)):
        if found.steps[place].name not in found.outputs:
            value = evaluated(found)[found.steps[place].name]
            if value.is_floating_point():
                leaf = Leaf(
                    found.steps[place].name,
                    "input",
                    tuple(value.shape),
                    is_differentiable=value.dtype is torch.float64,
                )
                steps = found.steps[:place] + found.steps[place + 1 :]
                yield without_unread(replace(found, steps=steps, leaves=(*found.leaves, leaf)))
    if len(found.steps) > 1 and len(found.outputs) == 1:
        for name in found.steps[-1].read:
            if name.startswith("t") and any(s.name == name for s in found.steps):
                yield without_unread(replace(found, outputs=(name,)))
    for leaf in found.leaves:
        if leaf.form:
            plain = replace(
                leaf, form="", kind="param" if leaf.kind == "param" else "places" if leaf.most else "input"
            )
            yield replace(found, leaves=tuple(plain if other is leaf else other for other in found.leaves))
    if found.is_trained:
        yield replace(found, is_trained=False)


def evaluated(found):
    """All tensors of a model in float64."""
    known = found.values()
    with torch.no_grad():
        for step in found.steps:
            known[step.name] = step.run(known)
    return known
