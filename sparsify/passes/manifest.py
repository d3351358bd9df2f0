"""The manifest of a saved model's folder: class, arguments of `apply`, sizes and sums of files.

In: `parsed(b'{"layout": 2, "model": "Bert", ...}')`. Out: `Manifest(layout=2, model="Bert", ...)`; `text(manifest)` is
the file again. Loading a model for serving imports no library for the checks.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Final

LAYOUT, SERVED = 2, 3
LAYOUTS: Final = (1, LAYOUT, SERVED)
GRAPH: Final = "graph.json"
KERNELS: Final = "kernels-"
# Files of graphs and kernels.
NAMED: Final = re.compile(rf"{re.escape(GRAPH)}|{KERNELS}[0-9a-f]{{16}}/[0-9a-f]{{16,64}}\.so")
# Fields that folders without graphs lack, as those of earlier versions.
OF_GRAPHS: Final = ("files", "levels", "instructions", "code")


class ManifestError(ValueError):
    """A text that is no manifest: the field and the reason."""


class UnknownLayoutError(ManifestError):
    """A manifest of a later version."""


@dataclass(frozen=True)
class SavedFile:
    """The size and the SHA-256 sum of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A saved model: class, arguments of `apply`, parameters without pruning, files.

    With graphs, `files` are the files of graphs and kernels, `levels` the CPU levels of the kernels,
    `instructions` the instruction sets of the CPU of their build, and `code` the digest of the compiler.
    """

    layout: int
    model: str
    training: bool
    strict: bool
    verify: bool
    trainable: bool | None
    tied: dict[str, str]
    passed: dict[int, dict[str, str]] | None = None
    weights: SavedFile | None = None
    recipe: SavedFile | None = None
    files: dict[str, SavedFile] = field(default_factory=dict)
    levels: list[str] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    code: str = ""
    sparsify: str = ""
    torch: str = ""

    def __post_init__(self) -> None:
        if self.layout > 1 and None in (self.weights, self.recipe):
            raise ManifestError("the sums of its files are missing")
        if self.is_served != (GRAPH in self.files):
            raise ManifestError("the sum of its graph is missing")
        for name in self.files:
            if not NAMED.fullmatch(name):
                raise ManifestError(f"{name} is no file of a saved model")

    @property
    def is_served(self) -> bool:
        """Whether the folder has graphs and kernels; of whole calls, which need no class, or of pieces."""
        return self.layout == SERVED

    @property
    def digest(self) -> str:
        """A digest equal for folders with equal content, independent of the saves."""
        files = sorted([name.rpartition("/")[2], file.sha256] for name, file in self.files.items())
        sums = [None if file is None else file.sha256 for file in (self.weights, self.recipe)]
        return hashlib.sha256(json.dumps([self.model, *sums, files]).encode()).hexdigest()


def text(manifest: Manifest) -> str:
    """The text of a manifest; without graphs in the format of earlier versions."""
    unset = () if manifest.is_served else OF_GRAPHS
    return json.dumps(
        {name: value for name, value in asdict(manifest).items() if name not in unset}, indent=2
    )


def parsed(content: bytes) -> Manifest:
    """The manifest of a text.

    Raises:
        ManifestError: the text is no manifest; the error has the first wrong field.
        UnknownLayoutError: a layout of a later version.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ManifestError("no mapping of fields")
    layout = checked_number("layout", data.get("layout"))
    if layout > SERVED:
        raise UnknownLayoutError(f"the layout {layout}")
    if layout not in LAYOUTS:
        raise ManifestError(f"layout: {layout} is none of {', '.join(map(str, LAYOUTS))}")
    found = {}
    for one in fields(Manifest):
        if one.name in data:
            found[one.name] = CHECKS[one.name](one.name, data[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ManifestError(f"{one.name}: the field is missing")
    return Manifest(**found)


def checked_number(name: str, value: Any) -> int:
    """An integer.

    Raises:
        ManifestError: another value.
    """
    if type(value) is not int:
        raise ManifestError(f"{name}: an integer is expected")
    return value


def checked_text(name: str, value: Any) -> str:
    """A text.

    Raises:
        ManifestError: another value.
    """
    if not isinstance(value, str):
        raise ManifestError(f"{name}: a text is expected")
    return value


def checked_boolean(name: str, value: Any) -> bool:
    """A boolean.

    Raises:
        ManifestError: another value.
    """
    if not isinstance(value, bool):
        raise ManifestError(f"{name}: true or false is expected")
    return value


def checked_file(name: str, value: Any) -> SavedFile:
    """The size and the sum of a file.

    Raises:
        ManifestError: another value.
    """
    known = checked_mapping(name, value)
    size = checked_number(f"{name}.bytes", known.get("bytes"))
    return SavedFile(size, checked_text(f"{name}.sha256", known.get("sha256")))


def checked_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """A mapping.

    Raises:
        ManifestError: another value.
    """
    if not isinstance(value, dict):
        raise ManifestError(f"{name}: a mapping is expected")
    return value


def checked_texts(name: str, value: Any) -> list[str]:
    """A list of texts.

    Raises:
        ManifestError: another value.
    """
    if not isinstance(value, list):
        raise ManifestError(f"{name}: a list is expected")
    return [checked_text(f"{name}.{position}", one) for position, one in enumerate(value)]


def checked_names(name: str, value: Any) -> dict[str, str]:
    """Texts by name.

    Raises:
        ManifestError: another value.
    """
    return {key: checked_text(f"{name}.{key}", one) for key, one in checked_mapping(name, value).items()}


def checked_files(name: str, value: Any) -> dict[str, SavedFile]:
    """Files by name.

    Raises:
        ManifestError: another value.
    """
    return {key: checked_file(f"{name}.{key}", one) for key, one in checked_mapping(name, value).items()}


def checked_rules(name: str, value: Any) -> dict[int, dict[str, str]]:
    """Texts by name, by the position of a rule.

    Raises:
        ManifestError: another value.
    """
    found = {}
    for key, one in checked_mapping(name, value).items():
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise ManifestError(f"{name}.{key}: the position of a rule is expected")
        found[int(key)] = checked_names(f"{name}.{key}", one)
    return found


def optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """A check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "layout": checked_number,
    "model": checked_text,
    "training": checked_boolean,
    "strict": checked_boolean,
    "verify": checked_boolean,
    "trainable": optional(checked_boolean),
    "tied": checked_names,
    "passed": optional(checked_rules),
    "weights": optional(checked_file),
    "recipe": optional(checked_file),
    "files": checked_files,
    "levels": checked_texts,
    "instructions": checked_texts,
    "code": checked_text,
    "sparsify": checked_text,
    "torch": checked_text,
}
