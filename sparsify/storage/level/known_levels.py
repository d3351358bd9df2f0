"""Level formats by name: built-in and registered ones.

In: `grouped`, `("2", "crd=int8")`. Out: `Grouped(n=2, crd="int8")`.
"""

from dataclasses import fields
from types import FunctionType

from sparsify.errors import FormatError
from sparsify.storage.level.hash_table import Hash
from sparsify.storage.level.levels import (
    ARRAY_DTYPES,
    FLAG_WORDS,
    Bitmap,
    Compressed,
    Dense,
    Grouped,
    Level,
    Ragged,
    Singleton,
    Sliced,
)

FLAGS = {word: name for name, word in FLAG_WORDS.items()}
LEVELS: dict[str, type[Level]] = {
    level.name: level for level in (Dense, Compressed, Singleton, Grouped, Bitmap, Sliced, Ragged, Hash)
}

BUILT_IN = frozenset(LEVELS)
LETTERS_TAKEN = "o"  # of coordinate levels


def register_level(cls: type[Level]) -> type[Level]:
    """Registers a level format by its name; a decorator of frozen dataclasses.

    Formats accept the name from now on, and tensors are converted, validated and computed with by the functions and
    the capabilities of the class. Integer fields are parameters in parentheses.

    Raises:
        FormatError: no frozen dataclass of `Level`, or a name or letter already taken.
    """
    if not (isinstance(cls, type) and issubclass(cls, Level) and "__dataclass_fields__" in vars(cls)):
        raise FormatError(f"the level {cls!r}", "a frozen dataclass that derives from sparsify.Level")
    name, letter = getattr(cls, "name", ""), getattr(cls, "letter", "")
    if not (isinstance(name, str) and name.isidentifier() and name.islower()):
        raise FormatError(f"a level called {name!r}", "a lower-case word")
    letters = {registered.letter: registered.name for registered in LEVELS.values() if registered is not cls}
    if LEVELS.get(name, cls) is not cls or name == "coordinate":
        raise FormatError(f"a second level called {name}", "another name")
    if not (isinstance(letter, str) and len(letter) == 1 and letter.islower()) or letter in (
        *letters,
        LETTERS_TAKEN,
    ):
        owner = letters.get(letter, "coordinate" if letter == LETTERS_TAKEN else "none")
        raise FormatError(
            f"the letter {letter!r} of {name}, which {owner} has", "one lower-case letter of its own"
        )
    LEVELS[name] = cls
    return cls


def registered() -> str:
    """Flags and functions of registered levels as text, "" without any: part of the keys of kernels."""
    texts = []
    for name, cls in sorted(LEVELS.items()):
        if name not in BUILT_IN:
            functions = [f.fget if isinstance(f, property) else f for f in vars(cls).values()]
            codes = [f.__code__ for f in functions if isinstance(f, FunctionType)]
            says = sorted(
                (n, v) for n, v in vars(cls).items() if isinstance(v, bool) and not n.startswith("_")
            )
            texts.append(
                f"{name} {says} {[(c.co_name, c.co_code.hex(), c.co_consts, c.co_names) for c in codes]}"
            )
    return "\n".join(texts)


def level(name: str, parameters: tuple[str, ...] = ()) -> Level:
    """The level format for a name and parameters.

    >>> level("compressed", ("unordered",))
    Compressed(unique=True, ordered=False, pos=None, crd=None)
    >>> level("grouped", ("2", "crd=int8"))
    Grouped(n=2, crd='int8')
    """
    if name not in LEVELS:
        raise FormatError(f"no level is called {name!r}", f"one of {', '.join((*LEVELS, 'coordinate'))}")
    parameter_types = {f.name: str(f.type) for f in fields(LEVELS[name])}
    numbers = [key for key, type in parameter_types.items() if "int" in type]
    arguments: dict[str, str | bool | int] = {}
    for word in parameters:
        key, separator, value = (part.strip() for part in word.partition("="))
        flag = FLAGS.get(key)
        if flag in parameter_types and not separator:
            arguments[str(flag)] = False
        elif key in ARRAY_DTYPES and key in parameter_types and separator:
            arguments[key] = value
        elif word.isdigit() and (left := [n for n in numbers if n not in arguments]):
            arguments[left[0]] = int(word)
        else:
            choices = [
                key if key in numbers else FLAG_WORDS.get(key, f"{key}=int32")
                for key in sorted(parameter_types)
            ]
            raise FormatError(
                f"a {name} level has no parameter {word!r}", f"it takes {', '.join(choices) or 'none'}"
            )
    return LEVELS[name](**arguments)
