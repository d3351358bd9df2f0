"""The data model of recipe files: what a recipe may say, checked, without any file or tensor in sight.

Every key and value here is read by `apply` or `run`; `unsupported.py` has the refusals of others.

In: `{"schema": 1, "name": "gcn", "sparsify": [{"targets": ["input:adj"], "format": "csr"}]}`.
Out: `Recipe(name="gcn", sparsify=(Rule(targets=("input:adj",), format="csr"),))`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from sparsify.recipe.sparsifier_spec import Sparsifier
from sparsify.recipe.suggestion import nearest
from sparsify.recipe.target import kind_of, require_target

Scalar = bool | int | float | str


class Section(BaseModel):
    """A part of a recipe: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def listed(value: Any) -> Any:
    """`value` as a list: one target is a list of one."""
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
Targets = Annotated[tuple[Annotated[str, AfterValidator(require_target)], ...], BeforeValidator(listed)]
Method = Literal[
    "magnitude",
    "block_magnitude",
    "random",
    "gradient",
    "gmp",
    "movement",
    "set",
    "rigl",
    "constant",
    "wanda",
    "sparsegpt",
    "threshold",
    "topk",
]
OF_SIZE: Final = {"threshold": "threshold", "topk": "keep"}
"""Methods whose share of zeros follows from the weights, and the number that each needs."""
GRADUAL: Final = ("gradient", "gmp", "movement", "set", "rigl")
"""Methods that change masks while a model trains."""
REGROWING: Final = ("set", "rigl")
MaskKind = Literal[
    "bigbird",
    "longformer",
    "sliding_window",
    "block_diagonal",
    "causal",
    "strided",
    "fixed",
    "from_file",
    "given",
]
Reorder = Literal["none", "rcm", "degree", "metis"]
StoredDtype = Literal["same", "bfloat16", "float16", "int8"]
Role = Literal["weight", "adjacency", "gate", "attention_mask", "activation"]
# The numbers of each kind of mask: the keyword arguments of the functions in `sparsify.patterns`.
MASK_NUMBERS: Final[dict[str, tuple[str, ...]]] = {
    "bigbird": ("block", "window", "global", "random", "seed", "heads", "causal"),
    "longformer": ("window", "global", "dilation", "block", "causal"),
    "sliding_window": ("before", "after", "block", "causal"),
    "block_diagonal": ("size", "block", "causal"),
    "causal": ("block",),
    "strided": ("stride", "block", "causal"),
    "fixed": ("stride", "summary", "block", "causal"),
    "from_file": ("path", "block", "causal"),
    "given": (),
}


class GroupPattern(Section):
    """`keep` entries of every `of` along a dimension; with `group` so many of a chunk's blocks share a pattern."""

    keep: int = Field(ge=0, json_schema_extra={"minimum": 1})
    of: int = Field(ge=1)
    group: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> "GroupPattern":
        if self.keep == 0:
            raise ValueError(
                f"keeps none of every {self.of}: n:m means n kept of every m, `1:{self.of}` at least; "
                "`sparsity: 1` without a pattern prunes all of a weight"
            )
        if self.keep > self.of:
            raise ValueError(
                f"keeps {self.keep} of {self.of}: `keep` is at most `of` (n:m means n kept of every m)"
            )
        if self.keep == self.of:
            raise ValueError(
                f"keeps all of every {self.of}, which prunes nothing: n:m means n kept of every m, fewer than m; "
                "without the rule all entries stay"
            )
        return self


class PatternSpec(Section):
    """A structure of zeros: n:m or n:m:g groups, blocks, or whole rows."""

    nm: GroupPattern | None = None
    block: tuple[int, int] | None = None
    row: bool = False

    @model_validator(mode="after")
    def _one(self) -> "PatternSpec":
        if self.block is not None and min(self.block) < 1:
            raise ValueError(f"`block: {list(self.block)}`: at least 1 row and 1 column; `block: [16, 16]`")
        if (self.nm is not None) + (self.block is not None) + self.row != 1:
            raise ValueError(
                "a pattern is one of `nm: {keep: 2, of: 4}`, `block: [16, 16]`, `row` or `unstructured`"
            )
        return self


def spelled_out(value: Any) -> Any:
    """`"2:4"` as `{"nm": {"keep": 2, "of": 4}}`, `"2:4:16"` with `"group": 16`, anything else as it is."""
    found = re.fullmatch(r"(\d+):(\d+)(?::(\d+))?", value) if isinstance(value, str) else None
    if found is None:
        return value
    group = {} if found[3] is None else {"group": int(found[3])}
    return {"nm": {"keep": int(found[1]), "of": int(found[2]), **group}}


def no_truth_value(value: Any) -> Any:
    """Any value but a truth value, which is 0 or 1 to Python: `sparsity: true` would prune everything."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is a truth value; a number is wanted")
    return value


def structured(value: Any) -> Any:
    """A pattern, with `2:4` and `row` spelled out and any other word than `unstructured` refused."""
    value = {"row": True} if value == "row" else spelled_out(value)
    if isinstance(value, str) and value != "unstructured":
        raise ValueError(
            f"unknown pattern {value!r}: write `2:4`, `2:4:16`, `{{block: [16, 16]}}`, `row` or `unstructured`"
        )
    return None if value == "unstructured" else value


class Prune(Section):
    """The pruning of a dense tensor.

    `threshold`: of `method: threshold`, the least magnitude that stays; `keep`: of `method: topk`, how many entries of
    each output stay, or with `dim: out` of each input.
    """

    method: Method
    sparsity: Annotated[float | None, BeforeValidator(no_truth_value)] = Field(default=None, ge=0, le=1)
    pattern: Annotated[PatternSpec | None, BeforeValidator(structured)] = None
    scope: Literal["layer", "global", "erk", "owl"] = "layer"
    score: str | None = None
    regrow: Literal["none", "random", "gradient"] | None = None
    fraction: Annotated[float, BeforeValidator(no_truth_value)] = Field(default=0.3, ge=0, le=1)
    threshold: Annotated[float | None, BeforeValidator(no_truth_value)] = Field(default=None, ge=0)
    keep: int | None = Field(default=None, ge=1)
    dim: int | Literal["in", "out"] | None = None

    @property
    def regrows(self) -> bool:
        """Whether dropped entries are exchanged for others."""
        return self.method in REGROWING if self.regrow is None else self.regrow != "none"

    @property
    def is_calibrated(self) -> bool:
        """Whether the method needs inputs of the model."""
        return self.method in ("wanda", "sparsegpt")

    @model_validator(mode="after")
    def _counts(self) -> "Prune":
        number = OF_SIZE.get(self.method)
        for key in ("threshold", "keep"):
            is_there = getattr(self, key) is not None
            if is_there and key != number:
                raise ValueError(f"`{key}` is not for `method: {self.method}`; leave it out")
            if key == number and not is_there:
                raise ValueError(f"`method: {self.method}` needs `{key}`")
        if number is not None and isinstance(self.dim, int):
            raise ValueError(f"`dim: {self.dim}` with `method: {self.method}`; `in` or `out`")
        if number is not None:
            idle = self.model_fields_set & {"sparsity", "pattern", "scope", "score", "regrow", "fraction"}
            if idle:
                raise ValueError(
                    f"`{min(idle)}` with `method: {self.method}`, whose zeros follow from `{number}` and the weights; "
                    "leave it out"
                )
        return self

    @model_validator(mode="after")
    def _agrees(self) -> "Prune":
        group = self.pattern.nm if self.pattern else None
        is_shared = self.method != "constant" and self.method not in OF_SIZE
        if group is None and self.sparsity is None and is_shared:
            raise ValueError(f"`method: {self.method}` needs `sparsity`, the share of zeros")
        if self.method == "block_magnitude" and (self.pattern is None or self.pattern.block is None):
            raise ValueError(
                "`method: block_magnitude` needs `pattern: {block: [16, 16]}`; single entries and n:m groups are "
                "chosen by `method: magnitude`"
            )
        if self.is_calibrated and self.scope != "layer":
            raise ValueError(
                f"`scope: {self.scope}` with `method: {self.method}`: entries are compared within a weight; "
                "leave `scope` out"
            )
        if group is None and self.dim is not None and self.method != "topk":
            raise ValueError(
                "`dim` is the mode along which n:m groups lie; leave it out, or add such a `pattern`"
            )
        if group is not None and self.regrows:
            raise ValueError("n:m groups do not regrow; leave `regrow` or `pattern` out")
        if self.sparsity == 1 and self.regrows:
            raise ValueError("`sparsity: 1` leaves no entries that could regrow; a smaller share")
        if group is not None and self.scope != "layer":
            raise ValueError(
                f"`scope: {self.scope}` shares one target among weights, and n:m groups have none; leave `scope` out"
            )
        if (
            group is not None
            and group.group is not None
            and self.dim not in (None, "in", "out", -2, -1, 0, 1)
        ):
            raise ValueError(f"`dim: {self.dim}`: n:m:g groups are for matrices, `dim` is `in` or `out`")
        if (
            group is not None
            and self.sparsity is not None
            and abs(self.sparsity - (1 - group.keep / group.of)) > 1e-6
        ):
            raise ValueError(
                f"sparsity {self.sparsity} contradicts the pattern {group.keep}:{group.of}, "
                f"whose sparsity is {1 - group.keep / group.of:g}; leave `sparsity` out"
            )
        return self


def mask_numbers(schema: dict[str, Any]) -> None:
    """Writes into the JSON schema of masks which keys each kind has."""
    schema["allOf"] = [
        {
            "if": {"properties": {"kind": {"const": kind}}},
            "then": {"propertyNames": {"enum": ["kind", *numbers]}},
        }
        for kind, numbers in MASK_NUMBERS.items()
    ]


class Mask(Section):
    """A structural pattern with its numbers."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra=mask_numbers)

    kind: MaskKind

    @model_validator(mode="after")
    def _has_its_numbers(self) -> "Mask":
        known = MASK_NUMBERS[self.kind]
        for name in self.model_extra or {}:
            if name not in known:
                raise ValueError(f"the mask {self.kind} has no {name!r}{nearest(name, known)}")
        return self


class FormatSpec(Section):
    """A storage format by its levels."""

    levels: Annotated[tuple[str, ...], BeforeValidator(listed)]
    ordering: tuple[int, ...] | None = None


class When(Section):
    """Limits outside of which a tensor stays dense."""

    min_density: float | None = Field(default=None, ge=0, le=1)
    max_density: float | None = Field(default=None, ge=0, le=1)
    min_size: int | None = Field(default=None, ge=0)


class ScheduleSpec(Section):
    """The share of zeros over the steps of a training; `to` is that of `prune` where it is not given.

    With `rewind` all weights go back to their values at this step whenever masks change, as for lottery tickets.
    """

    kind: Literal["oneshot", "constant", "linear", "cubic", "cosine"] | None = None
    start_at: float | None = Field(default=None, alias="from", ge=0, le=1)
    to: float | None = Field(default=None, ge=0, le=1)
    start: int = Field(default=0, ge=0)
    end: int | None = Field(default=None, ge=0)
    every: int = Field(default=1, ge=1)
    unit: Literal["step", "epoch"] = "step"
    rewind: int | None = Field(default=None, ge=0)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())

    @model_validator(mode="after")
    def _in_order(self) -> "ScheduleSpec":
        if self.end is not None and self.end < self.start:
            raise ValueError(f"ends at {self.end}, before its start at {self.start}")
        if self.start_at is not None and self.to is not None and self.start_at > self.to:
            raise ValueError(f"goes from {self.start_at} to fewer zeros, {self.to}; exchange them")
        if self.rewind is not None and self.rewind >= (self.start or self.every):
            raise ValueError(
                f"`rewind: {self.rewind}` is no step before the first update, which is at step "
                f"{self.start or self.every}"
            )
        return self


class Grad(Section):
    """STen's four parts of a gradient; with `format: same` it has the pattern of its tensor, else one of its own."""

    inline: Sparsifier = None
    temporary: str | FormatSpec = "auto"
    external: Sparsifier = None
    format: str | FormatSpec = "same"


class Rule(Section):
    """A selection of tensors and their sparse format."""

    id: str | None = None
    ref: str | None = None
    targets: Targets = ()
    types: Names = ()
    ignore: Targets = ()
    role: Role | None = None
    source: Literal["given", "prune", "mask", "computed"] | None = None
    static: bool = False
    reorder: Reorder = "none"
    ties: Literal["share", "untie", "error"] = "error"
    prune: Prune | None = None
    schedule: ScheduleSpec | None = None
    mask: Mask | None = None
    inline: Sparsifier = None
    temporary: str | FormatSpec = "auto"
    external: Sparsifier = None
    format: str | FormatSpec = "auto"
    grad: Grad | None = None
    dtype: StoredDtype = "same"
    when: When | None = None
    optional: bool = False

    _line: int = PrivateAttr(default=0)
    _column: int = PrivateAttr(default=0)
    _later: "tuple[Rule, ...]" = PrivateAttr(default=())

    @property
    def later(self) -> "tuple[Rule, ...]":
        """The rules of later stages for its tensors, with steps counted from the start of the training."""
        return self._later

    @property
    def line(self) -> int:
        """The line of the file where the rule starts, 0 when it has no file."""
        return self._line

    @property
    def column(self) -> int:
        """The column of the file where the rule starts, 0 when it has no file."""
        return self._column

    @property
    def origin(self) -> str:
        """The origin of the sparsity, inferred where the rule names none."""
        if self.source is not None:
            return self.source
        if self.prune or self.mask:
            return "prune" if self.prune else "mask"
        return "sparsified" if self.has_parts else "given"

    @property
    def has_parts(self) -> bool:
        """Whether it says how results of operators, or their gradients, become sparse."""
        parts = (self.inline, self.external, self.grad)
        return self.temporary != "auto" or any(part is not None for part in parts)

    @model_validator(mode="after")
    def _named(self) -> "Rule":
        if self.ref is None and not self.targets:
            raise ValueError("a rule needs `targets`")
        others = sorted(self.model_fields_set - {"ref", "prune", "schedule"})
        if self.ref is not None and (others or self.prune is None):
            wrong = f"`{others[0]}` beside it" if others else "no `prune`"
            raise ValueError(
                f"`ref: {self.ref}` takes the tensors of an earlier rule and has {wrong}; write `ref`, `prune` and "
                "`schedule` alone"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "Rule":
        if self.source == "prune" and self.prune is None:
            raise ValueError("`source: prune` needs a `prune` section with a method")
        if self.source == "mask" and self.mask is None:
            raise ValueError("`source: mask` needs a `mask` section with a kind")
        if self.source == "given" and (self.prune or self.mask):
            raise ValueError(
                "`source: given` means that the tensor is sparse already; leave out `prune` and `mask`"
            )
        if self.prune is not None and self.mask is not None:
            raise ValueError("`prune` is for parameters and `mask` for attention; write a rule for each")
        if self.source == "computed" and (self.role != "gate" or self.prune is not None):
            raise ValueError(
                "`source: computed` is for gates that the model makes sparse itself, `role: gate` without `prune`; "
                "others are `given`, `prune` or `mask`"
            )
        if self.prune is not None:
            self._require_schedule(self.prune, self.schedule or ScheduleSpec())
        if (idle := next(self._idle(), None)) is not None:
            raise ValueError("`{}` {}".format(*idle))
        return self

    @staticmethod
    def _require_schedule(prune: Prune, schedule: ScheduleSpec) -> None:
        """Raises where a schedule does not reach what `prune` asks for."""
        if prune.method in OF_SIZE and schedule.model_fields_set:
            raise ValueError(
                f"`schedule` with `method: {prune.method}`, which has no share of zeros; leave it out"
            )
        is_gradual = prune.method in GRADUAL or schedule.kind in ("linear", "cubic", "cosine")
        if is_gradual and schedule.end is None:
            raise ValueError(
                f"`method: {prune.method}` changes masks over steps; `schedule: {{end: 1000, every: 100}}`"
            )
        group = prune.pattern.nm if prune.pattern else None
        wanted = prune.sparsity if group is None else 1 - group.keep / group.of
        if None not in (schedule.to, wanted) and abs(schedule.to - wanted) > 1e-6:  # type: ignore[operator]
            raise ValueError(
                f"`schedule: to: {schedule.to}` contradicts the share of zeros {wanted:g} of `prune`"
            )
        if schedule.rewind is not None and (prune.regrows or not schedule.end):
            what = f"entries that {prune.method} regrows" if prune.regrows else "an update without a step"
            raise ValueError(
                f"`rewind: {schedule.rewind}` with {what}; a method that does not regrow, and `start` or `end`"
            )
        if schedule.start_at is not None and wanted is not None and schedule.start_at > wanted + 1e-6:
            raise ValueError(
                f"`schedule: from: {schedule.start_at}` is more than the {wanted:g} that `prune` asks for"
            )

    def _idle(self) -> Iterator[tuple[str, str]]:
        """The keys that have no meaning beside the others of the rule, each with the reason."""
        kinds = [kind_of(target) for target in self.targets]
        tensors = [t for t, kind in zip(self.targets, kinds, strict=True) if kind in ("param", "input")]
        if self.has_parts and (tensors or self.source is not None or self.prune or self.mask):
            key = next(k for k in ("inline", "external", "temporary", "grad") if k in self.model_fields_set)
            what = tensors[0] if tensors else "`source`, `prune` or `mask`"
            yield (
                key,
                "is for results of operators, `node:...` or `op:...`, in a rule of their own, and here is "
                f"{what}; zeros of parameters are made by `prune`, and their gradients keep the pattern",
            )
        others = [t for t, kind in zip(self.targets, kinds, strict=True) if kind not in ("param", "")]
        if self.prune is not None and others:
            yield "prune", f"makes zeros in parameters, and {others[0]} is none; name them as `param:...`"
        if self.schedule is not None and self.prune is None:
            yield "schedule", "says when `prune` makes zeros, and the rule has no `prune`; leave it out"
        if self.dtype != "same" and others:
            yield (
                f"dtype: {self.dtype}",
                f"rounds parameters, and {others[0]} is none; name them as `param:...`",
            )
        if self.mask is not None and all(kind in ("param", "input") for kind in kinds):
            yield (
                "mask",
                "is for attention: `targets: [op:scaled_dot_product_attention]`, or a scope that has some",
            )
        if self.mask is not None and self.format != "auto":
            yield "format", "of a mask follows from its `block`; leave it out"
        if self.ties != "error" and self.prune is None and self.dtype == "same":
            yield "ties", "is for rules that change weights, by `prune` or `dtype`; leave it out"
        is_input = self.prune is None and self.mask is None and any(kind != "param" for kind in kinds)
        if self.static and not is_input:
            yield "static: true", "is for inputs, and this rule names none; leave it out"
        if self.reorder != "none" and (self.prune is not None or self.mask is not None):
            yield "reorder", "is for adjacencies; leave it out"
        if self.when is not None and (self.mask is not None or self.source == "computed"):
            yield "when", "needs entries that are known ahead, and masks and gates have none; leave it out"


class Stage(Section):
    """A part of a recipe in time: zeros that are made at once, or a training of some steps.

    `steps`: of `run: train`, by default up to its last update; `rewind`: of `run: oneshot` behind a training, the step
    to whose weights all weights go back. Steps of schedules count from the start of the stage.
    """

    id: str | None = None
    run: Literal["oneshot", "train"]
    steps: int | None = Field(default=None, ge=1)
    rewind: int | None = Field(default=None, ge=0)
    sparsify: tuple[Rule, ...] = ()


class Factory(Section):
    """A registered model and its arguments."""

    factory: str
    args: dict[str, Any] = Field(default_factory=dict)


class Data(Section):
    """A registered data set."""

    name: str


class Fuse(Section):
    """Limits of fusion across einsums: with `across: functions` within one call of a module."""

    enabled: bool = True
    max_einsums: int | None = Field(default=None, ge=1)
    across: Literal["functions", "modules"] = "modules"


class Compile(Section):
    """Options of code generation and of the C++ compiler."""

    fallback: Literal["error", "warn"] = "warn"
    threads: int | None = Field(default=None, ge=1)
    backends: tuple[Literal["own", "torch", "onednn", "torch_sparse"], ...] | None = None
    memory: Literal["fast", "compact"] = "fast"

    @field_validator("backends")
    @classmethod
    def _has_kernels(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and "own" not in value:
            raise ValueError("`compile: backends` without `own` leaves no kernels; add `own`")
        return value

    def allows(self, backend: str) -> bool:
        """Whether a backend may be chosen."""
        return self.backends is None or backend in self.backends


class Shard(Section):
    """The division of a model among processes, for `sparsify.shard`.

    `graph`: the folder of parts that `sparsify partition` wrote, rows of nodes and edges are divided; `memory`: one
    process computes the parts in turns within so much; `linear: tensor`: weights of linear layers are divided, in
    pairs; `timeout`: seconds after which a process that does not answer is an error.
    """

    graph: str | None = None
    memory: str | int | None = None
    linear: Literal["tensor"] | None = None
    timeout: Annotated[float, BeforeValidator(no_truth_value)] = Field(default=300.0, gt=0)

    @model_validator(mode="after")
    def _one(self) -> "Shard":
        if (self.graph is None) == (self.linear is None):
            raise ValueError("`shard` has one of `graph: parts/` and `linear: tensor`")
        if self.memory is not None and self.graph is None:
            raise ValueError("`memory` is for the parts of a `graph`; leave it out")
        return self


class Calibration(Section):
    """The part of the calibration data that is used.

    `samples`: rows of the first mode of the inputs, all without it; `length`: tokens of each sample, the second mode;
    `seed`: draws the samples, without it the first ones are taken; `split`: the data that results are evaluated on, for
    the report.
    """

    samples: int | None = Field(default=None, ge=1)
    length: int | None = Field(default=None, ge=1)
    seed: int | None = None
    split: str = ""


class Verify(Section):
    """The reference for the result: the dense model, with the zeros and the masks that rules give it."""

    against: Literal["dense", "dense_with_mask"] = "dense"
    rtol: float = Field(default=1e-4, ge=0)
    atol: float = Field(default=1e-5, ge=0)


class Recipe(Section):
    """Sparse tensors of a model: selection, pruning, formats, and the check of the result.

    >>> Recipe(name="gcn", sparsify=({"targets": "input:adj", "format": "csr"},)).rules[0].targets
    ('input:adj',)
    """

    version: Literal[1] = Field(default=1, alias="schema")
    name: str
    description: str = ""
    source: str = ""
    args: dict[str, Scalar] = Field(default_factory=dict)
    model: Factory | None = None
    data: Data | None = None
    seed: int | None = None
    calibration: Calibration | None = None
    sparsify: tuple[Rule, ...] = ()
    stages: tuple[Stage, ...] = ()
    fuse: Fuse = Fuse()
    compile: Compile = Compile()
    verify: Verify = Verify()
    shard: Shard | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())

    _file: str = PrivateAttr(default="")
    _folded: tuple[Rule, ...] = PrivateAttr(default=())

    @property
    def file(self) -> str:
        """The file that the recipe was read from, "" when it was built in Python."""
        return self._file

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in order; those of `stages` with what later stages do to their tensors."""
        return self._folded if self.stages else self.sparsify

    def with_rules(self, rules: Iterable[Rule]) -> "Recipe":
        """The recipe with these rules in place of its own."""
        return self.model_copy(update={"sparsify": tuple(rules), "stages": ()})

    def without_shard(self) -> "Recipe":
        """The recipe for one process."""
        return self.model_copy(update={"shard": None})

    def with_optional_rules(self, role: str | None = None) -> "Recipe":
        """The recipe whose rules, all or those of a role, may match nothing."""
        return self.with_rules(
            rule.model_copy(update={"optional": True}) if role in (None, rule.role) else rule
            for rule in self.rules
        )

    @model_validator(mode="after")
    def _staged(self) -> "Recipe":
        from sparsify.recipe.stages import folded  # it knows the classes of this module

        if self.stages and self.sparsify:
            raise ValueError("`sparsify` beside `stages`; write its rules into the first stage")
        if (stray := next((rule.ref for rule in self.sparsify if rule.ref is not None), None)) is not None:
            raise ValueError(f"`ref: {stray}` is for rules of later `stages`; name the tensors in `targets`")
        self._folded = folded(self.stages)
        rewinds = {
            r.schedule.rewind for rule in self.rules for r in (rule, *rule.later) if r.schedule is not None
        } - {None}
        if len(rewinds) > 1:
            raise ValueError(f"`rewind` to the steps {sorted(map(str, rewinds))}; one step for all rules")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.verify.against == "dense_with_mask" and all(rule.mask is None for rule in self.rules):
            raise ValueError(
                "`verify: against: dense_with_mask`: no rule has a `mask`; write `against: dense`"
            )
        if self.calibration and not any(rule.prune and rule.prune.is_calibrated for rule in self.rules):
            raise ValueError(
                "`calibration`: no rule has `method: wanda` or `method: sparsegpt`; leave it out"
            )
        seen: set[str] = set()
        for rule in self.rules:
            if rule.id is not None and rule.id in seen:
                raise ValueError(f"two rules have the id {rule.id!r}; ids are unique")
            seen |= {rule.id} if rule.id else set()
        return self
