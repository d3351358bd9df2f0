"""YAML 1.2 text to plain data, with the position of every key and value.

In: `schema: 1\nname: gcn\n`. Out: `{"schema": 1, "name": "gcn"}` and `{("name",): Position(2, 1), ...}`.
Tags, duplicate keys, merge keys and cycles are refused, so nothing in a file can run code or hide.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sparsify.errors import RecipeError
from sparsify.recipe.limits import MAX_BYTES, MAX_NODES
from sparsify.recipe.suggestion import nearest

Path = tuple[str | int, ...]
CORE_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")
)
TOO_LARGE = f"a recipe has at most {MAX_BYTES >> 10} KiB; shorten it, or name many tensors by patterns"
TOO_DEEP = "the recipe refers to itself or is nested too deeply; write values out"
MAX_OVERRIDE = 1000
INTEGER_BITS = 63
REFERENCE = re.compile(r"\$\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Position:
    """A line and a column of a file, counted from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """Plain data and the position of each part in the file."""

    file: str
    data: Any = None
    positions: dict[Path, Position] = field(default_factory=dict)

    def position(self, path: Path) -> Position:
        """Position of `path`, or of the nearest enclosing part."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return Position(0, 0)

    def error(self, message: str, path: Path = ()) -> RecipeError:
        """Error with `message` at the position of `path`."""
        at = self.position(path)
        return RecipeError(message, self.file, at.line, at.column)


def read(text: str, file: str) -> Source:
    """Plain data of a YAML 1.2 text with positions.

    Raises:
        RecipeError: it is too large, not YAML, or holds more than plain values.
    """
    root, source = composed(text, file), Source(file)
    if root is None:
        raise RecipeError("the file is empty; a recipe starts with `schema: 1`", file, 0, 0)
    source.data = _Reader(source, YAML(typ="safe", pure=True)).build(root, ())
    return source


def composed(text: str, file: str) -> Node | None:
    """Nodes of a YAML 1.2 text, with tags and positions; `None` for an empty text.

    Raises:
        RecipeError: it is too large, or not YAML.
    """
    if len(text) > MAX_BYTES:
        raise RecipeError(TOO_LARGE, file)
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except RecursionError:
        raise RecipeError(TOO_DEEP, file) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise RecipeError(f"not valid YAML: {error.problem or error.context}", file, line, column) from None
    except YAMLError as error:
        raise RecipeError(f"not valid YAML: {error}", file, 0, 0) from None
    return root


class _Reader:
    """Builder of plain data from composed nodes; records positions on the way."""

    def __init__(self, source: Source, yaml: YAML) -> None:
        self.source, self.yaml = source, yaml
        self.count = 0
        self.open: set[int] = set()

    def build(self, node: Node, path: Path) -> Any:
        """Plain value of `node`."""
        mark = node.start_mark
        self.source.positions.setdefault(path, Position(mark.line + 1, mark.column + 1))
        self.count += 1
        if self.count > MAX_NODES or id(node) in self.open:
            raise self.source.error("the file is too large or refers to itself; write values out", path)
        tag = str(node.tag)
        if tag not in CORE_TAGS:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self.source.error(f"the tag {shown} is refused: recipes hold plain values only", path)
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.build(item, (*path, position)) for position, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark
            key = key_node.value
            if not isinstance(key_node, ScalarNode) or not isinstance(key, str):
                raise RecipeError("keys are plain words", self.source.file, at.line + 1, at.column + 1)
            if key == "<<":
                raise RecipeError(
                    "merge keys are refused; write the keys out", self.source.file, at.line + 1, at.column + 1
                )
            if key in result:
                first = self.source.position((*path, key)).line
                raise RecipeError(
                    f"the key {key!r} stands twice, first in line {first}; keep one",
                    self.source.file, at.line + 1, at.column + 1,
                )  # fmt: skip
            self.source.positions[(*path, key)] = Position(at.line + 1, at.column + 1)
            result[key] = self.build(value_node, (*path, key))
        return result

    def _scalar(self, node: Node) -> Any:
        try:
            value = self.yaml.constructor.construct_object(node, deep=True)
            if isinstance(value, str):
                value.encode()
        except (YAMLError, ValueError, LookupError, TypeError, AttributeError):
            raise self._no_value(node, f"is no {str(node.tag).rpartition(':')[2]}") from None
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise self._no_value(node, "is too large")
        return value

    def _no_value(self, node: Node, why: str) -> RecipeError:
        at = node.start_mark
        return RecipeError(f"{str(node.value)[:40]!r} {why}", self.source.file, at.line + 1, at.column + 1)


def parse_scalar(text: str) -> Any:
    """Value of `text` in YAML 1.2: `3` is a number, `2:4` a string."""
    if len(text) > MAX_OVERRIDE:
        return text
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def substitute(source: Source, overrides: Mapping[str, Any]) -> None:
    """Replaces `${key}` in the data by the arguments of the recipe; `overrides` take precedence over the defaults.

    A value consisting of one reference takes the argument with its type; references inside longer text become text.
    """
    data = source.data
    if not isinstance(data, dict):
        raise source.error("a recipe is a mapping that starts with `schema: 1`")
    args = data.get("args") or {}
    if not isinstance(args, dict):
        raise source.error("`args` is a mapping of names to default values", ("args",))
    for key, value in overrides.items():
        if key not in args:
            raise source.error(
                f"{key}={value}: the recipe has no argument {key!r}{nearest(key, args)}", ("args",)
            )
        args[key] = (
            parse_scalar(value) if isinstance(value, str) and not isinstance(args[key], str) else value
        )

    written = 0

    def put_in(found: re.Match[str]) -> str:
        nonlocal written
        text = str(args[found[1]])
        written += len(text)
        if written > MAX_BYTES:
            raise RecipeError(TOO_LARGE, source.file)
        return text

    def visit(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: visit(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [visit(item, (*path, position)) for position, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        names = REFERENCE.findall(value)
        for name in names:
            if name not in args:
                raise source.error(f"${{{name}}} names no argument{nearest(name, args)}", path)
        if len(names) == 1 and value == f"${{{names[0]}}}":
            return args[names[0]]
        return REFERENCE.sub(put_in, value)

    rest = {key: visit(value, (key,)) for key, value in data.items() if key != "args"}
    source.data = {**rest, **({"args": args} if "args" in data else {})}
