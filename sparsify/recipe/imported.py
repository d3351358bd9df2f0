"""Import of recipes of SparseML and llm-compressor as recipes of sparsify, without importing torch.

In:

    modifiers:
      - !GMPruningModifier {params: ["re:.*weight"], init_sparsity: 0.05, final_sparsity: 0.9,
                            start_epoch: 0, end_epoch: 30, update_frequency: 1}

Out: `{targets: ["re:param:.*weight"], prune: {method: gmp, sparsity: 0.9}, schedule: {kind: cubic, from: 0.05, ...}}`.

The text is composed into nodes and never built into objects; `eval(...)` of its variables is arithmetic alone.
Sources: SparseML 1.8, sparseml.pytorch.sparsification.pruning; llm-compressor 0.6, llmcompressor.modifiers.
"""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sparsify.errors import RecipeError
from sparsify.recipe.limits import MAX_BYTES
from sparsify.recipe.parse import load
from sparsify.recipe.source import composed

# Fields of `prune` by the name of a modifier.
PRUNING: Final[Mapping[str, Mapping[str, Any]]] = {
    "GMPruningModifier": {"method": "gmp"},
    "MagnitudePruningModifier": {"method": "gmp"},
    "GlobalMagnitudePruningModifier": {"method": "gmp", "scope": "global"},
    "MovementPruningModifier": {"method": "movement"},
    "ConstantPruningModifier": {"method": "constant"},
    "SparseGPTModifier": {"method": "sparsegpt"},
    "WandaPruningModifier": {"method": "wanda"},
}
ONE_SHOT: Final = ("sparsegpt", "wanda")
# Pruning modifiers without an equivalent rule; other modifiers (learning rates, epochs, quantization) do not prune.
WITHOUT: Final = re.compile(r"Prun|Spars|AC_?DC|TopKAST|Powerpropagation")
LAYERS: Final = ("Linear", "Conv1d", "Conv2d", "Conv3d")
CURVES: Final = ("linear", "cubic")
OPERATIONS: Final[Mapping[type, Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
FRONT_MATTER: Final = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Modifier:
    """A modifier of an imported recipe.

    Attributes:
        name: name of the modifier's class.
        line: line in the file.
        keys: values by key, as YAML nodes.
    """

    name: str
    line: int
    keys: Mapping[str, Node]


@dataclass
class Imported:
    """Translation of a recipe.

    Attributes:
        recipe: valid recipe of sparsify as plain data.
        notes: name, line and reason for each modifier without a rule.
    """

    recipe: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def import_recipe(path: str | PathLike[str], steps_per_epoch: int | None = None) -> Imported:
    """Recipe of SparseML or llm-compressor as a recipe of sparsify.

    Args:
        path: a YAML file, or Markdown with YAML front matter between two lines of `---`.
        steps_per_epoch: steps of an epoch, converts epochs to steps; required for schedules with fractional epochs.

    Raises:
        RecipeError: the file is missing or not YAML, nothing in it prunes, or a modifier has no equivalent rule.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe: {error}", str(file)) from None
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise RecipeError(f"{steps_per_epoch} steps in an epoch; 1 or more", str(file))
    front = FRONT_MATTER.match(text)
    if front is not None:
        text = "\n" + front[1]  # lines keep their numbers
    root = composed(text, str(file))
    reader = _Reader(str(file), steps_per_epoch, dict(_variables(root)))
    rules, notes = reader.rules(root)
    if not rules:
        known = ", ".join(PRUNING)
        raise RecipeError(
            f"nothing in it prunes as one of {known}" + "".join(f"; {n}" for n in notes), str(file)
        )
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem).strip("-") or "imported"
    recipe = {"schema": 1, "name": name, "description": f"Imported from {file.name}.", "sparsify": rules}
    try:
        load(recipe)
    except RecipeError as error:
        raise RecipeError(f"as a recipe of sparsify: {error.message}", str(file)) from None
    return Imported(recipe, notes)


def _variables(root: Node | None) -> Iterator[tuple[str, Node]]:
    """Scalars of the outermost mapping: the variables of `eval(...)`."""
    if isinstance(root, MappingNode):
        yield from ((key.value, value) for key, value in root.value if isinstance(value, ScalarNode))


def _modifiers(node: Node | None) -> Iterator[Modifier]:
    """Modifiers of a text: `- !Name {...}` in a list, or `Name: {...}` in a mapping, under `...modifiers`."""
    if not isinstance(node, MappingNode):
        return
    for key, value in node.value:
        if not str(key.value).endswith("modifiers"):
            yield from _modifiers(value)
        elif isinstance(value, SequenceNode):
            for entry in value.value:
                yield _modifier(str(entry.tag).rpartition("!")[2], entry)
        elif isinstance(value, MappingNode):
            for name, entry in value.value:
                yield _modifier(str(name.value), entry)


def _modifier(name: str, node: Node) -> Modifier:
    """Modifier with its keys."""
    keys = {str(key.value): value for key, value in node.value} if isinstance(node, MappingNode) else {}
    return Modifier(name, node.start_mark.line + 1, keys)


@dataclass
class _Reader:
    """Reader of the modifiers of one file."""

    file: str
    steps_per_epoch: int | None
    variables: dict[str, Node]

    def rules(self, root: Node | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Rules of the pruning modifiers, and notes on the others."""
        rules: list[dict[str, Any]] = []
        notes: list[str] = []
        for modifier in _modifiers(root):
            place = f"{modifier.name} (line {modifier.line})"
            if modifier.name not in PRUNING:
                why = (
                    "no method here"
                    if WITHOUT.search(modifier.name)
                    else "belongs to the training, not to a recipe"
                )
                notes.append(f"{place}: {why}")
                continue
            rule = self.rule(modifier)
            if rule["prune"]["method"] == "constant" and any(
                rule["targets"] == other["targets"] for other in rules
            ):
                notes.append(f"{place}: masks stay after their last update without it")
                continue
            rules.append(rule)
            if self.number(modifier, "leave_enabled", 1.0) == 0:
                notes.append(f"{place}: `leave_enabled: False` is passed over, masks stay")
        return rules, notes

    def rule(self, modifier: Modifier) -> dict[str, Any]:
        """Rule of a pruning modifier."""
        prune = dict(PRUNING[modifier.name])
        if self.word(modifier, "global_sparsity") == "true":
            prune["scope"] = "global"
        if pattern := self.pattern(modifier):
            prune["pattern"] = pattern
        rule = {**self.targets(modifier), "role": "weight"}
        if prune["method"] == "constant":
            return {**rule, "prune": {key: prune[key] for key in ("method",)}}
        key = "sparsity" if prune["method"] in ONE_SHOT else "final_sparsity"
        sparsity = self.number(modifier, key, None)
        if not isinstance(pattern, str) or ":" not in pattern:
            if sparsity is None:
                raise self.error(modifier, f"no `{key}`, the share of zeros")
            prune["sparsity"] = sparsity
        if prune["method"] in ONE_SHOT:
            return {**rule, "prune": prune}
        return {**rule, "prune": prune, "schedule": self.schedule(modifier)}

    def targets(self, modifier: Modifier) -> dict[str, Any]:
        """`targets`, `types` and `ignore` of a rule."""
        named = modifier.keys.get("params") or modifier.keys.get("targets")
        found: dict[str, list[str]] = {"targets": [], "types": [], "ignore": []}
        is_by_module = "params" not in modifier.keys
        for word in self.words(modifier, named) if named is not None else ["__ALL_PRUNABLE__"]:
            if word in ("__ALL_PRUNABLE__", "__ALL__"):
                found["targets"].append("param:*weight")
                found["types"] += LAYERS
            elif word.startswith("re:"):
                inner = word[3:].removesuffix("$")
                tail = r"\..*weight" if is_by_module else "" if inner.endswith("weight") else ".*"
                found["targets"].append(f"re:param:{inner}{tail}")
            elif word in LAYERS:
                found["targets"].append("param:*weight")
                found["types"].append(word)
            else:
                found["targets"].append(f"param:{word}.weight" if is_by_module else f"param:{word}")
        for word in self.words(modifier, modifier.keys["ignore"]) if "ignore" in modifier.keys else []:
            inner = word.removeprefix("re:").removesuffix("$")
            found["ignore"].append(
                f"re:param:{inner}(\\..*)?" if word.startswith("re:") else f"param:{word}.*"
            )
        if not found["targets"]:
            raise self.error(modifier, "`params` names nothing")
        return {key: list(dict.fromkeys(words)) for key, words in found.items() if words}

    def pattern(self, modifier: Modifier) -> Any:
        """Structure of the zeros, "" for single entries."""
        asked = self.word(modifier, "mask_type") or self.word(modifier, "mask_structure") or "unstructured"
        if asked in ("unstructured", "0:0"):
            return ""
        if re.fullmatch(r"\d+:\d+", asked):
            return asked
        if asked in ("block", "block4"):
            return {"block": [1, 4]}
        if asked == "filter":
            return "row"
        raise self.error(
            modifier, f"the mask {asked!r} has no pattern here; unstructured, n:m, block4 or filter"
        )

    def schedule(self, modifier: Modifier) -> dict[str, Any]:
        """Schedule of gradual pruning."""
        start = self.number(modifier, "start_epoch", self.number(modifier, "start", 0.0)) or 0.0
        end = self.number(modifier, "end_epoch", self.number(modifier, "end", None))
        if end is None:
            raise self.error(modifier, "no `end_epoch`")
        every = self.number(modifier, "update_frequency", 1.0) or 0.0
        curve = self.word(modifier, "inter_func") or "cubic"
        if curve not in CURVES:
            raise self.error(modifier, f"`inter_func: {curve}`; {' or '.join(CURVES)}")
        first = self.number(modifier, "init_sparsity", 0.0)
        found: dict[str, Any] = {"kind": curve, "from": first}
        if self.steps_per_epoch is not None:
            start, end, every = (self.steps_per_epoch * epochs for epochs in (start, end, every))
        elif any(epochs != int(epochs) for epochs in (start, end, every)) or every <= 0:
            raise self.error(modifier, "its schedule has parts of epochs; give the steps of an epoch")
        else:
            found["unit"] = "epoch"
        return {**found, "start": round(start), "end": round(end), "every": max(1, round(every))}

    def number(self, modifier: Modifier, key: str, otherwise: float | None) -> float | None:
        """Number of a key; booleans are 1 and 0."""
        text = self.word(modifier, key)
        if text in ("", "null", "~", "none"):
            return otherwise
        if text in ("true", "false"):
            return float(text == "true")
        return self.value(modifier, text, set())

    def value(self, modifier: Modifier, text: str, open_: set[str]) -> float:
        """Value of a number, or of an arithmetic expression over the variables."""
        inner = re.fullmatch(r"eval\((.*)\)", text.strip(), re.DOTALL)
        try:
            tree = ast.parse((inner[1] if inner else text).strip(), mode="eval").body
            return self.computed(modifier, tree, open_)
        except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
            raise self.error(modifier, f"{text[:60]!r} is no number") from None

    def computed(self, modifier: Modifier, tree: ast.expr, open_: set[str]) -> float:
        """Value of an expression of numbers, names, + - * / and //."""
        match tree:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.computed(modifier, operand, open_)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
                sides = (self.computed(modifier, side, open_) for side in (left, right))
                return float(OPERATIONS[type(op)](*sides))
            case ast.Name(id=name) if name in self.variables and name not in open_:
                return self.value(modifier, str(self.variables[name].value), {*open_, name})
        raise ValueError(ast.unparse(tree))

    def word(self, modifier: Modifier, key: str) -> str:
        """Text of a key in lower case, "" without the key."""
        node = modifier.keys.get(key)
        if node is None:
            return ""
        if not isinstance(node, ScalarNode):
            raise self.error(modifier, f"`{key}` is a list or a mapping, not one value")
        text = str(node.value).strip()
        return text if text.startswith("eval(") else text.lower() if text not in self.variables else text

    def words(self, modifier: Modifier, node: Node) -> list[str]:
        """Texts of a list, or of a single value."""
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        if not all(isinstance(one, ScalarNode) for one in nodes):
            raise self.error(modifier, "names of parameters or layers are texts")
        return [str(one.value).strip() for one in nodes]

    def error(self, modifier: Modifier, text: str) -> RecipeError:
        """Error about a modifier, with its line."""
        return RecipeError(f"{modifier.name}: {text}", self.file, modifier.line)
