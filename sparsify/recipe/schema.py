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

from sparsify.recipe.source import nearest
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
Method = Literal["magnitude", "block_magnitude", "wanda", "sparsegpt"]
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

    keep: int = Field(ge=0)
    of: int = Field(ge=1)
    group: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> "GroupPattern":
        if self.keep > self.of:
            raise ValueError(
                f"keeps {self.keep} of {self.of}: `keep` is at most `of` (n:m means n kept of every m)"
            )
        return self


class PatternSpec(Section):
    """A structure of zeros: n:m or n:m:g groups, or blocks."""

    nm: GroupPattern | None = None
    block: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _one(self) -> "PatternSpec":
        if (self.nm is None) == (self.block is None):
            raise ValueError(
                "a pattern is one of `nm: {keep: 2, of: 4}`, `block: [16, 16]` or `unstructured`"
            )
        return self


def spelled_out(value: Any) -> Any:
    """`"2:4"` as `{"nm": {"keep": 2, "of": 4}}`, `"2:4:16"` with `"group": 16`, anything else as it is."""
    found = re.fullmatch(r"(\d+):(\d+)(?::(\d+))?", value) if isinstance(value, str) else None
    if found is None:
        return value
    group = {} if found[3] is None else {"group": int(found[3])}
    return {"nm": {"keep": int(found[1]), "of": int(found[2]), **group}}


def structured(value: Any) -> Any:
    """A pattern, with `2:4` spelled out and any other word than `unstructured` refused."""
    value = spelled_out(value)
    if isinstance(value, str) and value != "unstructured":
        raise ValueError(
            f"unknown pattern {value!r}: write `2:4`, `2:4:16`, `{{block: [16, 16]}}` or `unstructured`"
        )
    return None if value == "unstructured" else value


class Prune(Section):
    """How a dense tensor becomes sparse."""

    method: Method
    sparsity: float | None = Field(default=None, ge=0, le=1)
    pattern: Annotated[PatternSpec | None, BeforeValidator(structured)] = None
    scope: Literal["layer", "global"] = "layer"
    dim: int | Literal["in", "out"] | None = None

    @property
    def is_calibrated(self) -> bool:
        """Whether the method needs inputs of the model."""
        return self.method in ("wanda", "sparsegpt")

    @model_validator(mode="after")
    def _agrees(self) -> "Prune":
        group = self.pattern.nm if self.pattern else None
        if group is None and self.sparsity is None:
            raise ValueError(f"`method: {self.method}` needs `sparsity`, the share of zeros")
        if self.method == "block_magnitude" and (self.pattern is None or self.pattern.block is None):
            raise ValueError(
                "`method: block_magnitude` needs `pattern: {block: [16, 16]}`; single entries and n:m groups are "
                "chosen by `method: magnitude`"
            )
        if self.is_calibrated and self.scope == "global":
            raise ValueError(
                f"`scope: global` with `method: {self.method}`: entries are compared within a weight; leave `scope` out"
            )
        if group is None and self.dim is not None:
            raise ValueError(
                "`dim` is the mode along which n:m groups lie; leave it out, or add such a `pattern`"
            )
        if group is not None and self.scope == "global":
            raise ValueError(
                "`scope: global` shares one threshold, and n:m groups have none; leave `scope` out"
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


class Rule(Section):
    """Which tensors are sparse, and how."""

    id: str | None = None
    targets: Annotated[Targets, Field(min_length=1)]
    types: Names = ()
    ignore: Targets = ()
    role: Role | None = None
    source: Literal["given", "prune", "mask", "computed"] | None = None
    static: bool = False
    reorder: Reorder = "none"
    ties: Literal["share", "untie", "error"] = "error"
    prune: Prune | None = None
    mask: Mask | None = None
    format: str | FormatSpec = "auto"
    dtype: StoredDtype = "same"
    when: When | None = None
    optional: bool = False

    _line: int = PrivateAttr(default=0)
    _column: int = PrivateAttr(default=0)

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
        """Where the sparsity comes from, inferred when the rule does not say it."""
        if self.source is not None:
            return self.source
        return "prune" if self.prune else "mask" if self.mask else "given"

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
        if (idle := next(self._idle(), None)) is not None:
            raise ValueError("`{}` {}".format(*idle))
        return self

    def _idle(self) -> Iterator[tuple[str, str]]:
        """The keys that have no meaning beside the others of the rule, each with the reason."""
        kinds = [kind_of(target) for target in self.targets]
        others = [t for t, kind in zip(self.targets, kinds, strict=True) if kind not in ("param", "")]
        if self.prune is not None and others:
            yield "prune", f"makes zeros in parameters, and {others[0]} is none; name them as `param:...`"
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


class Factory(Section):
    """A registered model and its arguments."""

    factory: str
    args: dict[str, Any] = Field(default_factory=dict)


class Data(Section):
    """A registered data set."""

    name: str


class Fuse(Section):
    """Which einsums may become one program: with `across: functions` those of one call of a module."""

    enabled: bool = True
    max_einsums: int | None = Field(default=None, ge=1)
    across: Literal["functions", "modules"] = "modules"


class Compile(Section):
    """How kernels are made."""

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


class Calibration(Section):
    """Which part of the calibration data is used.

    `samples`: rows of the first mode of the inputs, all without it; `length`: tokens of each sample, the second mode;
    `seed`: draws the samples, without it the first ones are taken; `split`: the data that results are evaluated on, for
    the report.
    """

    samples: int | None = Field(default=None, ge=1)
    length: int | None = Field(default=None, ge=1)
    seed: int | None = None
    split: str = ""


class Verify(Section):
    """What the result is compared with: the dense model, with the zeros and the masks that rules give it."""

    against: Literal["dense", "dense_with_mask"] = "dense"
    rtol: float = Field(default=1e-4, ge=0)
    atol: float = Field(default=1e-5, ge=0)


class Recipe(Section):
    """Which tensors of a model are sparse, how they become so, are stored, and how the result is checked.

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
    fuse: Fuse = Fuse()
    compile: Compile = Compile()
    verify: Verify = Verify()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())

    _file: str = PrivateAttr(default="")

    @property
    def file(self) -> str:
        """The file that the recipe was read from, "" when it was built in Python."""
        return self._file

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in order."""
        return self.sparsify

    def with_rules(self, rules: Iterable[Rule]) -> "Recipe":
        """The recipe with these rules in place of its own."""
        return self.model_copy(update={"sparsify": tuple(rules)})

    def with_optional_rules(self, role: str | None = None) -> "Recipe":
        """The recipe whose rules, all or those of a role, may match nothing."""
        return self.with_rules(
            rule.model_copy(update={"optional": True}) if role in (None, rule.role) else rule
            for rule in self.rules
        )

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
