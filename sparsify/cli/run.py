"""`sparsify run MODEL`: train or prune, make sparse, verify and time a registered model; print one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsify.cli.printing import Json, print_json
from sparsify.errors import SparsifyError
from sparsify.options import current, override

if TYPE_CHECKING:
    from sparsify.runner.preview import Preview
    from sparsify.runner.request import Request
    from sparsify.runner.result import Result
    from sparsify.runner.served import ServedResult
    from sparsify.runner.sharded import ShardedResult


Model = Annotated[
    str,
    typer.Argument(
        help="A folder that `--save` wrote, as ./bert where a model has its name, or a registered model: "
        "gcn, gcn-matmul, sage, gin, gat, mlp, bert, vit, "
        "autoencoder, dlrm, resnet50, gpt, gpt-40m, resnet20, lenet5, lenet300, minilm."
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Arguments of the recipe, the model or the training: hidden=64 epochs=50.",
    ),
]
SparseWeights = Annotated[
    str | None,
    typer.Option(
        metavar="0.9|2:4|2:4:16",
        help="Prune linear layers: a share of zeros, n kept of m neighbours, or n:m:g.",
    ),
]
SparseAttn = Annotated[
    str | None,
    typer.Option(
        metavar="bigbird|longformer|window|...",
        help="The pattern of attention; its numbers as KEY=VALUE: block=32 window=3.",
    ),
]
Layers = Annotated[str | None, typer.Option(metavar="0,2-5", help="Only these get the pattern of attention.")]
Dataset = Annotated[
    str | None,
    typer.Option(help="Of graph models: synthetic (default), cora, citeseer, pubmed or ogbn-arxiv; mnist."),
]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Rows, images or texts of one pass of models without a graph; texts: 1024 tokens together if left out."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="1024", help="Of graph models: train on sampled neighbourhoods of so many nodes."),
]
Fanout = Annotated[
    str | None,
    typer.Option(
        metavar="10,10", help="How many neighbours are sampled, step by step away from those nodes."
    ),
]
Sparse = Annotated[
    bool, typer.Option("--sparse", help="Of graph models: train the sparse model instead of the dense one.")
]
Out = Annotated[Path | None, typer.Option(help="Write JSON, CSV and the report into this folder.")]
Html = Annotated[Path | None, typer.Option(help="Write the report as one HTML page, this file.")]
Trace = Annotated[
    Path | None, typer.Option(help="Write the trace of a call, for ui.perfetto.dev or chrome://tracing.")
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Save the sparse model with its kernels, for `sparsify run DIR`."),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="torch,onednn,inductor,...",
        help="Time the dense model by these, too: torch, onednn, inductor, bf16, openvino, onnxruntime; all; none. "
        "If left out, the fastest of those that are ready in seconds, which inductor is not.",
    ),
]
Seq = Annotated[int | None, typer.Option("--seq", "--seq-len", help="Tokens of each text: 128 (default).")]


Nproc = Annotated[
    int | None,
    typer.Option(
        metavar="2",
        help="Of graph models: train over so many processes of this machine, a part of the graph each, and in one.",
    ),
]


def run(
    context: typer.Context,
    model: Model,
    pairs: Pairs = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe: built-in name or file.")] = None,
    sparse_weights: SparseWeights = None,
    sparse_attn: SparseAttn = None,
    layers: Layers = None,
    batch: Batch = None,
    seq: Seq = None,
    batch_size: BatchSize = None,
    fanout: Fanout = None,
    dataset: Dataset = None,
    data_root: Annotated[Path | None, typer.Option(help="The folder of real data; only read.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data, weights and training.")] = None,
    sparse: Sparse = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train although the cache has weights.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")] = False,
    as_json: Json = False,
    out: Out = None,
    html: Html = None,
    trace: Trace = None,
    save: Save = None,
    baseline: Baseline = None,
    nproc: Nproc = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would become sparse.")] = False,
) -> None:
    """Make a model sparse by its recipe, verify it, time both, print one table.

    Models of graphs are trained first, others pruned: `sparsify run bert --sparse-weights 0.9 --batch 8 --seq 128`.
    """
    from sparsify.runner.peers.baselines import parsed
    from sparsify.runner.request import resolve, split_pairs

    if is_folder(model):
        run_folder(context, Path(model), quiet, as_json)
    wanted = parsed(baseline)
    request = resolve(
        model,
        recipe=recipe,
        dataset=dataset,
        data_root=data_root,
        overrides=split_pairs(pairs or []),
        seed=seed,
        sparse_weights=sparse_weights,
        sparse_attn=sparse_attn,
        layers=layers,
        batch=batch,
        seq=seq,
        batch_size=batch_size,
        fanout=fanout,
        sparse=sparse,
    )
    if nproc is not None:
        run_processes(context, request, nproc, quiet, as_json)
    if dry_run:
        show_preview(request, as_json, html=html, trace=trace, save=save)
        return
    files = {"out": out, "html": html, "trace": trace, "save": save}
    run_here(context, request, quiet, as_json, retrain=retrain, baseline=wanted, **files)


def run_here(context: typer.Context, request: "Request", quiet: bool, as_json: bool, **asked: Any) -> None:
    """Runs a model in the current process, prints the result, and exits."""
    from sparsify.runner.run import run_request

    with override(quiet=quiet or current().quiet):
        result = run_request(request, command=context.obj or "", **asked)
    show(result, as_json)
    raise typer.Exit(result.exit_status)


def is_folder(model: str) -> bool:
    """Whether an argument is a folder and no registered model: a path, or the name of a folder with a saved model."""
    from sparsify.models import registry
    from sparsify.passes import saved_folder

    if model in registry.MODELS or not Path(model).is_dir():
        return False
    is_path = Path(model).name != model
    return is_path or saved_folder.holds_model(Path(model))


def show_preview(request: "Request", as_json: bool, **files: Path | None) -> None:
    """Prints the preview: tensors that would become sparse."""
    from sparsify.runner.preview import preview

    refuse_files(**files)
    show(preview(request), as_json)


def run_folder(context: typer.Context, folder: Path, quiet: bool, as_json: bool) -> None:
    """Runs the served model in a folder, prints times, and exits.

    Raises:
        SparsifyError: an option not applicable to saved models.
    """
    from sparsify.runner.served import run_served

    why = f"is for models that are made sparse now, and {folder} is a saved one"
    refuse_options(context, ("model", "quiet", "as_json"), why)
    with override(quiet=quiet or current().quiet):
        result = run_served(folder)
    show(result, as_json)
    raise typer.Exit(result.exit_status)


def run_processes(context: typer.Context, request: "Request", count: int, quiet: bool, as_json: bool) -> None:
    """Trains a graph model in several processes, prints times, and exits."""
    from sparsify.runner.sharded import run_sharded

    taken = (
        "model", "pairs", "recipe", "dataset", "data_root", "seed", "quiet", "as_json", "nproc",
    )  # fmt: skip
    refuse_options(context, taken, "is for runs in one process, and --nproc starts several")
    with override(quiet=quiet or current().quiet):
        result = run_sharded(request, count)
    show(result, as_json)
    raise typer.Exit(result.exit_status)


def refuse_options(context: typer.Context, taken: tuple[str, ...], why: str) -> None:
    """Raises for a command-line option outside of `taken`."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in taken and source is not None and source.name == "COMMANDLINE":
            raise SparsifyError(f"--{name.replace('_', '-')} {why}", "leave it out")


def refuse_files(**files: Path | None) -> None:
    """Raises for an output file that requires a run."""
    for name, path in files.items():
        if path is not None:
            raise SparsifyError(
                f"--{name} {path} is of a run, and --dry-run runs nothing", "leave one of the two out"
            )


def show(found: "Preview | Result | ServedResult | ShardedResult", as_json: bool) -> None:
    """Prints a result as a table or as JSON."""
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
