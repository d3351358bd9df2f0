"""`sparsify train MODEL --recipe R`: trains a registered model under a recipe; prints one table."""

from pathlib import Path
from typing import Annotated

import typer

from sparsify.cli.printing import Json, print_json
from sparsify.options import current, override

Model = Annotated[
    str, typer.Argument(help="A model that learns: gpt, gpt-40m, lenet5, lenet300, minilm, mlp, resnet20.")
]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Arguments of the recipe or the model: sparsity=0.95 end=750 layers=4."
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="synthetic (default without --data-root); ag_news, imdb, all texts; mnist; cifar10."),
]
Device = Annotated[
    str, typer.Option(help="Where to train; other devices than cpu train under masks, without kernels.")
]
Teacher = Annotated[
    str | None,
    typer.Option(
        help="Whose results are learned in place of labels: dense, the model before it is pruned, or the --out of an "
        "earlier training. Default of encoders as minilm: dense."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="The folder for checkpoint, log.csv, result.json and curves as SVG.")
]


def train(
    model: Model,
    pairs: Pairs = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe: built-in name or file.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps; by default a third more than the schedules of the recipe have.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate of AdamW: 0.001 (default).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts or images of a step.")] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", "--seq-len", help="Tokens of a text: 128 (default).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, batches, dropout and masks.")] = None,
    dataset: Dataset = None,
    text: Annotated[Path | None, typer.Option(help="A file whose text a language model learns.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="The folder of real data; only read.")] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    dense: Annotated[bool, typer.Option("--dense", help="Train the dense model, for comparison.")] = False,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    device: Device = "cpu",
    teacher: Teacher = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model under a recipe: masks follow its schedules, a step is timed beside that of the dense model.

    Ctrl-C ends the step that runs, writes a checkpoint and stops; --resume goes on as if nothing had happened.
    """
    from sparsify.runner.request import split_pairs
    from sparsify.runner.train.settings import resolve

    settings = resolve(
        model,
        recipe=recipe,
        overrides=split_pairs(pairs or []),
        dataset=dataset,
        text=text,
        data_root=data_root,
        steps=steps,
        lr=lr,
        batch_size=batch_size,
        seq=seq,
        seed=seed,
        validate_every=validate_every,
        save_every=save_every,
        dense=dense,
        device=device,
        teacher=teacher,
    )
    from sparsify.runner.train.loop import run

    with override(quiet=quiet or current().quiet):
        outcome = run(settings, out=out, resume=resume)
    if as_json:
        print_json(outcome.to_dict())
    else:
        typer.echo(str(outcome))
    raise typer.Exit(outcome.exit_status)
