"""The data model of recipe files: what a recipe may say, checked, without any file or tensor in sight.

In: `{"schema": 1, "name": "gcn", "sparsify": [{"targets": ["input:adj"], "format": "csr"}]}`.
Out: `Recipe(name="gcn", sparsify=(Rule(targets=("input:adj",), format="csr"),))`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from sparsify.recipe.target import require_target

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
    "random",
    "threshold",
    "topk",
    "block_magnitude",
    "wanda",
    "sparsegpt",
    "movement",
    "rigl",
    "constant",
]
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
Role = Literal["weight", "adjacency", "gate", "attention_mask", "activation", "gradient"]


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
    keep: int | None = Field(default=None, ge=1)
    scope: Literal["layer", "global"] = "layer"
    dim: int | Literal["in", "out"] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "Prune":
        group = self.pattern.nm if self.pattern else None
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


class Mask(Section):
    """A structural pattern with its numbers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: MaskKind


class PruneSchedule(Section):
    """How sparsity grows over steps or epochs."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["constant", "linear", "cubic", "polynomial"] = "constant"
    start_value: float | None = Field(default=None, alias="from")
    end_value: float | None = Field(default=None, alias="to")
    start: int = 0
    end: int | None = None
    every: int = 1
    unit: Literal["step", "epoch"] = "step"


class FormatSpec(Section):
    """A storage format by its levels."""

    levels: Annotated[tuple[str, ...], BeforeValidator(listed)]
    ordering: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None


class When(Section):
    """Limits outside of which a tensor stays dense."""

    min_density: float | None = Field(default=None, ge=0, le=1)
    max_density: float | None = Field(default=None, ge=0, le=1)
    min_size: int | None = Field(default=None, ge=0)


class Gradient(Section):
    """How the gradient of a tensor is stored; `same` keeps the tensor's pattern."""

    inline: Prune | None = None
    temporary: str | None = None
    external: Prune | None = None
    format: str | None = None


class Rule(Section):
    """Which tensors are sparse, and how."""

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
    mask: Mask | None = None
    schedule: PruneSchedule | None = None
    format: str | FormatSpec = "auto"
    dtype: StoredDtype = "same"
    inline: Prune | None = None
    temporary: str | None = None
    external: Prune | None = None
    grad: Gradient | None = None
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
        if not self.targets and self.ref is None:
            raise ValueError("a rule needs `targets` (or `ref`, the id of an earlier rule)")
        if self.source == "prune" and self.prune is None and self.ref is None:
            raise ValueError("`source: prune` needs a `prune` section with a method")
        if self.source == "mask" and self.mask is None and self.ref is None:
            raise ValueError("`source: mask` needs a `mask` section with a kind")
        if self.source == "given" and (self.prune or self.mask):
            raise ValueError(
                "`source: given` means that the tensor is sparse already; leave out `prune` and `mask`"
            )
        return self


class Calibration(Section):
    """Which data a calibrated sparsifier looks at."""

    samples: int = Field(default=128, ge=1)


class Stage(Section):
    """One step of a recipe with several."""

    id: str | None = None
    run: Literal["oneshot", "train"] = "oneshot"
    calibration: Calibration | None = None
    epochs: int | None = Field(default=None, ge=0)
    sparsify: tuple[Rule, ...]


class Factory(Section):
    """A registered model and its arguments."""

    factory: str
    args: dict[str, Any] = Field(default_factory=dict)


class Data(Section):
    """A registered data set and its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class Fuse(Section):
    """Which einsums may become one program."""

    enabled: bool = True
    max_einsums: int | None = Field(default=None, ge=1)
    across: Literal["functions", "modules"] = "modules"


class Compile(Section):
    """How kernels are made."""

    fallback: Literal["error", "warn"] = "warn"
    threads: int | None = Field(default=None, ge=1)
    backends: tuple[Literal["own", "torch", "onednn", "torch_sparse"], ...] | None = None
    memory: Literal["fast", "compact"] = "fast"

    def allows(self, backend: str) -> bool:
        """Whether a backend may be chosen."""
        return self.backends is None or backend in self.backends


class Verify(Section):
    """What the result is compared with."""

    against: Literal["dense", "masked_dense", "dense_with_mask"] = "dense"
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
    sparsify: tuple[Rule, ...] = ()
    stages: tuple[Stage, ...] = ()
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
        """All rules in order, those of the stages included."""
        return self.sparsify + tuple(rule for stage in self.stages for rule in stage.sparsify)

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.sparsify and self.stages:
            raise ValueError("a recipe has `sparsify` or `stages`, not both; put the rules into a stage")
        seen: set[str] = set()
        for rule in self.rules:
            if rule.ref is not None and rule.ref not in seen:
                raise ValueError(
                    f"`ref: {rule.ref}` names no earlier rule; earlier ids: {sorted(seen) or 'none'}"
                )
            if rule.id is not None and rule.id in seen:
                raise ValueError(f"two rules have the id {rule.id!r}; ids are unique")
            seen |= {rule.id} if rule.id else set()
        return self
