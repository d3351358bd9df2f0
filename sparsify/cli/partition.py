"""`sparsify partition GRAPH --parts N`: the parts of a graph as a folder, one for each process."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sparsify.cli.printing import Json, print_json, print_rows
from sparsify.errors import DataError


def partition(
    graph: Annotated[
        Path,
        typer.Argument(
            help="Edges: .npy, .npz of scipy, .pt (tensor, mapping or Data), Matrix Market .mtx, .csv or .txt with a "
            "source and a target in each line."
        ),
    ],
    parts: Annotated[int, typer.Option(help="How many parts, one for each process.")],
    out: Annotated[Path, typer.Option(help="A new folder for meta.json and part-r/*.safetensors.")],
    method: Annotated[
        str,
        typer.Option(
            metavar="metis|stream|range",
            help="METIS (needs pymetis), our streaming partitioner (memory by nodes, edges on disk), ranges of nodes.",
        ),
    ] = "stream",
    nodes: Annotated[
        int | None, typer.Option(help="How many nodes, where the last ones have no edges.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of choices between equal parts.")] = 0,
    columns: Annotated[
        int, typer.Option(help="Columns of the rows that are exchanged, for the prediction.")
    ] = 128,
    bandwidth: Annotated[float, typer.Option(help="GB/s between two processes, for the prediction.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Cut a graph into parts for several processes; print cut, halo, balance, expected exchange and speed-up."""
    from sparsify.scale.cost import Machine, predict
    from sparsify.scale.partition import partition as write

    if columns < 1 or bandwidth <= 0:
        raise DataError(f"{columns} columns and {bandwidth:g} GB/s", "give numbers above 0")
    meta = write(graph, parts, method, out, nodes=nodes, seed=seed)
    machine = Machine(columns=columns, network_bytes_per_s=bandwidth * 1e9)
    found = predict(meta, machine)
    if as_json:
        print_json(
            {**meta, "prediction": {**asdict(found), "speedup": found.speedup}, "machine": asdict(machine)}
        )
        return
    total, most = (f"{size / 1e6:.3g} MB" for size in (found.exchange_bytes, found.most_bytes))
    print_rows(
        (
            ("graph", f"{meta['nodes']} nodes, {meta['edges']} edges"),
            ("parts", f"{parts} by {method}, in {out}"),
            ("cut", f"{meta['cut']} edges, {found.cut:.1%}"),
            ("halo", f"{sum(size['halo'] for size in meta['sizes'])} rows, {found.halo:.1%} of all"),
            ("balance", f"{found.balance:.2f} times the mean part"),
            ("exchange", f"{total} in a layer, at most {most} a process"),
            ("speed-up", f"{found.speedup:.2f} expected on {parts} processes"),
            ("assumed", str(machine)),
        )
    )
