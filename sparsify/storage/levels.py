"""Level formats: how one level of a tensor stores its coordinates.

In: `compressed(crd=int16)`. Out: `Compressed(crd="int16")`.

Source: Chou, Kjolstad and Amarasinghe, Format Abstraction for Sparse Tensor Algebra Compilers, 2018.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

from sparsify.errors import FormatError

INDEX_DTYPES = ("int16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Level:
    """A level format; its class has the name that formats spell and the letter of printed IR."""

    name: ClassVar[str]
    letter: ClassVar[str]

    def __post_init__(self) -> None:
        for role in ("pos", "crd"):
            dtype = getattr(self, role, None)
            if dtype is not None and dtype not in INDEX_DTYPES:
                raise FormatError(
                    f"{role}={dtype} of a {self.name} level", f"one of {', '.join(INDEX_DTYPES)}"
                )

    @property
    def parameters(self) -> tuple[str, ...]:
        """What is written in parentheses: `("nonunique", "crd=int16")`."""
        words = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) and value is False:
                words.append(FLAG_WORDS[f.name])
            elif isinstance(value, str):
                words.append(f"{f.name}={value}")
        return tuple(words)

    def __str__(self) -> str:
        return spelled(self.name, self.parameters)


@dataclass(frozen=True, slots=True)
class Dense(Level):
    """Every coordinate has a position: `position = parent * extent + coordinate`; no arrays."""

    name: ClassVar[str] = "dense"
    letter: ClassVar[str] = "d"


@dataclass(frozen=True, slots=True)
class Compressed(Level):
    """The stored coordinates of parent `p` are `crd[pos[p]:pos[p + 1]]`.

    Attributes:
        unique: no coordinate occurs twice below a parent; not so above a singleton level.
        ordered: coordinates ascend below a parent.
        pos: dtype of `pos` where the format fixes it.
        crd: dtype of `crd` where the format fixes it.
    """

    name: ClassVar[str] = "compressed"
    letter: ClassVar[str] = "s"
    unique: bool = True
    ordered: bool = True
    pos: str | None = None
    crd: str | None = None


@dataclass(frozen=True, slots=True)
class Singleton(Level):
    """Every position of the level above has exactly one coordinate, `crd[position]`."""

    name: ClassVar[str] = "singleton"
    letter: ClassVar[str] = "q"
    crd: str | None = None


FLAG_WORDS = {"unique": "nonunique", "ordered": "unordered"}
FLAGS = {word: name for name, word in FLAG_WORDS.items()}
LEVELS: dict[str, type[Level]] = {level.name: level for level in (Dense, Compressed, Singleton)}


def spelled(name: str, parameters: tuple[str, ...]) -> str:
    """A level with its parameters: `compressed(crd=int16)`."""
    return f"{name}({', '.join(parameters)})" if parameters else name


def level(name: str, parameters: tuple[str, ...] = ()) -> Level:
    """The level format that a name and its parameters spell.

    >>> level("compressed", ("unordered",))
    Compressed(unique=True, ordered=False, pos=None, crd=None)
    """
    if name not in LEVELS:
        raise FormatError(f"no level is called {name!r}", f"one of {', '.join((*LEVELS, 'coordinate'))}")
    known = {f.name for f in fields(LEVELS[name])}
    arguments: dict[str, str | bool] = {}
    for word in parameters:
        key, separator, value = (part.strip() for part in word.partition("="))
        flag = FLAGS.get(key)
        if flag in known and not separator:
            arguments[str(flag)] = False
        elif key in known and key not in FLAG_WORDS and separator:
            arguments[key] = value
        else:
            choices = [FLAG_WORDS.get(k, f"{k}=int32") for k in sorted(known)]
            raise FormatError(
                f"a {name} level has no parameter {word!r}", f"it takes {', '.join(choices) or 'none'}"
            )
    return LEVELS[name](**arguments)
