"""`sparsify explain SUBJECT`: how a model or an expression is computed, stage by stage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsify.cli.printing import Json, print_json, print_rows
from sparsify.cli.run import Layers, Seq, SparseAttn
from sparsify.errors import SparsifyError

if TYPE_CHECKING:
    from sparsify.runner.explain import Shown
    from sparsify.runner.request import Request

STAGES = "graph, marked, einsum, formats, cost, notation, schedule, loops, cpp, kernel"


def explain(
    subject: Annotated[
        str | None, typer.Argument(help="A model, a recipe file, subscripts ij,jk->ik or index notation.")
    ] = None,
    rest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FORMAT|NAME=FORMAT|KEY=VALUE]...",
            help="A format for each operand of subscripts, A=csr for those of index notation; for a model, "
            "arguments of recipe or model: hidden=64.",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe: built-in name or file.")] = None,
    dataset: Annotated[str | None, typer.Option(help="What the model runs on.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="The folder of real data; only read.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data and weights.")] = None,
    region: Annotated[str | None, typer.Option(help="The number of a region, or all.  [default: 1]")] = None,
    stage: Annotated[list[str] | None, typer.Option(help=f"Only these: {STAGES}.")] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(metavar="i=1000,j=64", help="Extents, for the choice of the schedule.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of sparse operands, beside --sizes: 0.01 (default).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of all operands: float32 (default) or float64.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Instead of the chosen one.")] = None,
    sparse_attn: SparseAttn = None,
    layers: Layers = None,
    seq: Seq = None,
    picture: Annotated[bool, typer.Option("--picture", help="Draw the patterns of attention.")] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="List the operators of a model, or the whole table.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show graph, einsum, formats, notation, schedule, loops and C++ of a model's region or of an expression.

    The model's weights are not trained, and nothing is measured.
    """
    if subject is None:
        show_table(as_json, is_asked=ops)
        return
    of_model = {"recipe": recipe, "dataset": dataset, "data_root": data_root, "seed": seed}
    of_model |= {"sparse_attn": sparse_attn, "layers": layers, "seq": seq}
    of_expression = {"sizes": sizes, "density": density, "dtype": dtype, "schedule": schedule}
    if is_expression(subject):
        only = {"region": region, "ops": ops or None, "picture": picture or None}
        refuse({**of_model, **only}, "a model", subject)
        show(expression(subject, rest or [], of_expression, stage or []), as_json)
        return
    refuse(of_expression, "an expression", subject)
    request = resolved(subject, rest or [], of_model)
    if ops:
        show_operators(request, as_json)
    else:
        show(of_request(request, region or "1", stage or [], picture=picture), as_json)


def of_request(request: "Request", region: str, stages: list[str], *, picture: bool) -> "Shown | str":
    """The patterns of a model's attention, or the stages of a region."""
    if picture:
        from sparsify.runner.picture import pictures

        return pictures(request)
    from sparsify.runner.explain import explain_model_request

    return explain_model_request(request, region=region, stages=stages)


def is_expression(subject: str) -> bool:
    """Whether a subject is subscripts or index notation; models and files have neither arrows nor brackets."""
    return any(sign in subject for sign in ("->", ",", "["))


def refuse(given: dict[str, Any], whose: str, subject: str) -> None:
    """Raises for the first option not applicable to the subject."""
    for name, value in given.items():
        if value is not None:
            raise SparsifyError(f"--{name.replace('_', '-')} is for {whose}, and {subject} is none")


def resolved(subject: str, pairs: list[str], given: dict[str, Any]) -> "Request":
    """The request for a model, or for the model of a recipe file."""
    from sparsify import recipe as recipes
    from sparsify.runner.request import resolve, split_pairs

    model = subject
    if subject.endswith((".yaml", ".yml")):
        if given["recipe"] is not None:
            raise SparsifyError(
                f"{subject} and --recipe {given['recipe']} are two recipes", "give one of them"
            )
        found = recipes.load(subject).model
        if found is None:
            raise SparsifyError(
                f"{subject} names no model",
                f"write model: {{factory: gcn}} into it, or explain MODEL --recipe {subject}",
            )
        model, given = found.factory, {**given, "recipe": subject}
    return resolve(model, overrides=split_pairs(pairs), **given)


def expression(subject: str, formats: list[str], given: dict[str, Any], stages: list[str]) -> "Shown":
    """The explanation of an expression."""
    from sparsify.runner.explain import explain_expression
    from sparsify.runner.request import split_pairs

    parts = [part for text in given["sizes"] or [] for part in text.split(",")]
    return explain_expression(
        subject,
        formats,
        sizes=extents(split_pairs(parts)),
        density=0.01 if given["density"] is None else given["density"],
        dtype=given["dtype"] or "float32",
        schedule=given["schedule"],
        stages=stages,
    )


def extents(pairs: dict[str, str]) -> dict[str, int]:
    """`{"i": "1000"}` as numbers."""
    for name, text in pairs.items():
        if not text.isdigit() or int(text) < 1:
            raise SparsifyError(f"--sizes {name}={text} is no extent", f"a whole number, as in {name}=1000")
    return {name: int(text) for name, text in pairs.items()}


def show(found: "Shown | str", as_json: bool) -> None:
    """Prints an explanation, or a text."""
    if as_json:
        print_json({"text": found} if isinstance(found, str) else found.to_dict())
    else:
        typer.echo(str(found))


def show_table(as_json: bool, *, is_asked: bool) -> None:
    """Prints the operator table: each operator in index notation, or why torch's operator computes it.

    Raises:
        SparsifyError: no `--ops`, and nothing else to explain.
    """
    if not is_asked:
        raise SparsifyError("nothing to explain", "name a model, a recipe or an expression, or give --ops")
    from sparsify.passes.program.table import OPAQUE, ROWS, SECTIONS

    rows = sorted(ROWS.values(), key=lambda row: (SECTIONS.index(row.section), row.operator))
    if as_json:
        known = [
            {
                "operator": r.operator,
                "section": r.section,
                "notation": r.notation,
                "example": next(iter(r.examples), None),
            }
            for r in rows
        ]
        print_json({"operators": known, "opaque": dict(sorted(OPAQUE.items()))})
        return
    print_rows((row.section, row.operator, row.notation) for row in rows)
    typer.echo("")
    print_rows(("opaque", name, reason) for name, reason in sorted(OPAQUE.items()))


def show_operators(request: "Request", as_json: bool) -> None:
    """Prints the operators of a model."""
    from sparsify.runner.explain import operators_of

    found = operators_of(request)
    if as_json:
        rows = [{"operator": name, "times": times, "modules": modules} for name, times, modules in found]
        print_json({"subject": request.entry.name, "operators": rows})
    else:
        print_rows((f"op:{name}", str(times), " ".join(modules)) for name, times, modules in found)
