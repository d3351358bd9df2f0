"""Results thinned out by a sparsifier, within the kernel if possible.

In: `Y[i,k] = relu(T[i,k])`, `csr` and a sparsifier whose condition is `abs(value) >= threshold`. Out: the format
`csr where abs(value) >= threshold_Y` and the operand `threshold_Y`; block sparsifiers become selections from rows in a
kernel (`blockwise.py`); a sparsifier without a condition is applied to the results of the statements.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from sparsify.compiler.einsum.infer.extents import accesses
from sparsify.compiler.einsum.nodes import Assign, Const, Index
from sparsify.compiler.einsum.rewrite.restrict import place, selection_of, stored_under
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.plan.prepare.blockwise import Written, written
from sparsify.errors import FormatError, SparsifierError
from sparsify.storage.format import Format

Formats = Format | str | Mapping[str, Format | str] | None
# Key of the last result, to which a `format=` other than a mapping applies.
LAST = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition for keeping an entry, in index notation over `value`, `row`, `column` and operands.

    Attributes:
        text: condition; "" if all entries stay.
        operands: scalar tensors and Python numbers, by name.
    """

    text: str
    operands: tuple[tuple[str, Any], ...] = ()

    def named(self, ending: str) -> "Condition":
        """The condition with a suffix added to the names of its operands."""
        names = {name: f"{name}{ending}" for name, _ in self.operands}
        text = re.sub(r"\b[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), self.text)
        return Condition(text, tuple((names[name], value) for name, value in self.operands))

    def with_numbers(self) -> "Condition":
        """The condition with the values of its operands written into its text.

        >>> Condition("value > least", (("least", -0.5),)).with_numbers().text
        'value > (-0.5)'
        """
        numbers = {
            n: float(v) if isinstance(v, float) else v.item() if isinstance(v, torch.Tensor) else v
            for n, v in self.operands
        }
        written = {name: f"({number!r})" if number < 0 else repr(number) for name, number in numbers.items()}
        return Condition(re.sub(r"\b[A-Za-z_]\w*", lambda word: written.get(word[0], word[0]), self.text))

    def over(self, tensor: str, indices: Sequence[str]) -> str:
        """The condition for the entries of a tensor.

        >>> Condition("abs(value) > column").over("T", "ij")
        'abs(T[i, j]) > (j)'
        """
        return self.placed(f"{tensor}[{', '.join(indices)}]" if indices else tensor, indices)

    def placed(self, value: str, indices: Sequence[str]) -> str:
        """The condition for an entry, an access or any other expression, at coordinates, one for each mode."""
        row, column = place([Const(int(index)) if index.isdigit() else Index(index) for index in indices])
        parts = {"value": value, "row": f"({row})", "column": f"({column})"}
        return re.sub(r"\b(value|row|column)\b", lambda word: parts[word[0]], self.text)


@runtime_checkable
class Sparsifier(Protocol):
    """An object of `sparsify.sparsifiers`: a condition, or a function of whole tensors."""

    def condition(self) -> Condition | None:
        """The condition for keeping an entry; `None` if the decision depends on other entries."""

    def __call__(self, tensor: torch.Tensor, format: Any = None) -> torch.Tensor:
        """The tensor without the dropped entries."""


def in_kernel(
    format: Formats, sparsifier: Any, outputs: str | Sequence[str] | None = None
) -> tuple[Formats, dict[str, Any], dict[str, Sparsifier]]:
    """Formats with conditions, the operands of the conditions, and the remaining sparsifiers by result.

    Raises:
        SparsifierError: not a sparsifier, or one for several results.
    """
    if isinstance(sparsifier, Mapping):
        asked = dict(sparsifier)
        given: Formats = {} if format is None else format
        if LAST in (given if isinstance(given, Mapping) else {LAST}):
            raise SparsifierError(
                f"sparsifiers by result and the format {format!r} for the last one", "formats by result, too"
            )
    else:
        if not isinstance(outputs, str) and outputs is not None and len(outputs) != 1:
            raise SparsifierError(
                f"one sparsifier for the results {', '.join(outputs)}",
                "name them, sparsifier={'Y': ScalarThreshold(0.1)}",
            )
        name = LAST if outputs is None else outputs if isinstance(outputs, str) else outputs[0]
        asked, given = {name: sparsifier}, format
        if name and not isinstance(format, Mapping):
            given = {} if format is None else {name: format}
    formats: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {LAST: given}
    operands, left = dict[str, Any](), dict[str, Sparsifier]()
    for name, found in asked.items():
        if not isinstance(found, Sparsifier) or isinstance(found, type):
            raise SparsifierError(
                f"sparsifier={found!r}",
                "an object of sparsify.sparsifiers, ScalarThreshold(0.1), or such objects by result",
            )
        condition = found.condition()
        if condition is None:
            left[name] = found
        elif condition.text:
            condition = condition.named(f"_of_{name or 'result'}")
            formats[name] = under(formats.get(name), condition.text)
            operands |= dict(condition.operands)
    return formats.get(LAST, formats), operands, left


def by_block(
    text: str,
    outputs: str | Sequence[str] | None,
    format: Formats,
    sparsifier: Any,
    sizes: Mapping[str, int],
    operands: Mapping[str, Any],
) -> Written | None:
    """The format in which a kernel applies a blocking sparsifier of its only result; `None` for others."""
    name = outputs if isinstance(outputs, str) or outputs is None else outputs[0] if len(outputs) == 1 else ""
    if isinstance(sparsifier, Mapping | type) or name == "":
        return None
    if isinstance(format, Mapping):
        format = format.get(name or LAST)
    return written(text, name, format, sparsifier, sizes, operands)


def under(format: Format | str | None, condition: str) -> str:
    """The format that stores entries under a condition; "" stands for the inferred format."""
    text = "" if format is None else str(format)
    known = stored_under(text)
    if known is not None and (known[1] is not None or selection_of(text) is not None):
        raise FormatError(f"{text!r} and a sparsifier", "one condition: leave out the sparsifier, or `where`")
    return f"{text if known is None else known[0]} where {condition}"


def _is_read(name: str, statements: Sequence[Assign]) -> bool:
    """Whether other statements read a result."""
    others = [statement for statement in statements if statement.target.tensor != name]
    return any(access.tensor == name for access in accesses(others))


def evaluate_sparsified(
    evaluate: Callable[..., Any],
    text: str,
    outputs: str | Sequence[str] | None,
    format: Formats,
    sparsifier: Any,
    operands: Mapping[str, Any],
    **how: Any,
) -> Any:
    """The results of statements, thinned out by sparsifiers.

    Args:
        evaluate: function that computes statements.
        format: format of results, after sparsification.
        sparsifier: sparsifier of the result, or by result.
        how: further keyword arguments of `evaluate`.
    """
    blocks = by_block(text, outputs, format, sparsifier, how.get("sizes") or {}, operands)
    if blocks is not None:
        found = evaluate(text, blocks.output, format={blocks.output: blocks.format}, **how, **operands)
        return found if found.format == blocks.asked else found.to(format=blocks.asked)
    formats, more, left = in_kernel(format, sparsifier, outputs)
    if not left:
        return evaluate(text, outputs, format=formats, **how, **operands, **more)
    if isinstance(sparsifier, Mapping):
        kept = {name: form for name, form in dict(formats).items() if name not in left}  # type: ignore[arg-type]
        statements = parse(text, indices=how.get("sizes") or ())
        last = statements[-1].target.tensor
        names = [outputs] if isinstance(outputs, str) else list(outputs or dict.fromkeys([*left, last]))
        unknown = [name for name in left if name not in names]
        if unknown:
            raise SparsifierError(
                f"{left[unknown[0]]} of {unknown[0]}, which is not returned",
                f"name it in outputs=, or a streaming sparsifier; {', '.join(names)} are returned",
            )
        read = [name for name in left if names != [name] and _is_read(name, statements)]
        if read:
            raise SparsifierError(
                f"{left[read[0]]} of {read[0]}, which later statements read",
                "a streaming sparsifier, or the later statements in a call of their own",
            )
        found = evaluate(text, names, format=kept or None, **how, **operands, **more)
        results = [found] if len(names) == 1 else list(found)
        wanted = dict(formats)  # type: ignore[arg-type]
        made = [left[n](r, wanted.get(n)) if n in left else r for n, r in zip(names, results, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)
    (only,) = left.values()
    form = next(iter(formats.values()), None) if isinstance(formats, Mapping) else formats
    return only(evaluate(text, outputs, **how, **operands, **more), form)
