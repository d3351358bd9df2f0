"""Results of convolutions inside the padded images that the next convolution reads.

In: the regions of `y = relu(conv2d(x, w)); z = conv2d(y, v, padding=1)`. Out: the first with Y inside rows of zeros,
`Y[n,o,y,x]: float32 dense(n) ...; in rows of 18511 from 35 by 1156, 34, 1`: the second copies no images.

A result that convolutions alone read, with equal windows, is computed inside padded images; convolutions behind read
the result as a summand there, too, as residual sums do. A result that the next convolution has to copy nevertheless has
the reason in the report.
"""

from collections.abc import Sequence

from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.operands.convolution_operands import summand
from sparsify.passes.operands.sliding_window import Window
from sparsify.passes.region.region import Region

NOTE = "writes its result inside the padded images of the next convolution"
OUTSIDE = "the next convolution copies its result to padded images: "


def pad_results(draft: Draft) -> Draft:
    """The draft with results of convolutions inside padded images, as far as only convolutions read the results."""
    for region in draft.regions:
        readers = [other for other in draft.regions if region.output in other.inputs]
        windows = windows_behind(region, readers) if computes_rows(region) else None
        if windows is None:
            continue
        if isinstance(windows, str):
            region.notes.append(f"{OUTSIDE}{windows}")
            continue
        place(region, "Y", windows)
        region.notes.append(NOTE)
        for reader in readers:
            for name in summands(reader, region.output):
                place(reader, name, windows)
    return draft


def windows_behind(region: Region, readers: Sequence[Region]) -> tuple[Window, ...] | str | None:
    """The windows of the convolutions that read a convolution's result.

    Returns:
        the refusal, if a convolution has to copy the result to padded images; None if no convolution needs them.
    """
    layouts = [
        reader.layout
        for reader in readers
        if reader.layout is not None and position(reader, region.output) == reader.layout.places.image
    ]
    if all(layout.is_single or layout.example.is_plain for layout in layouts):
        return None
    covered = {node for reader in readers for node in reader.covered}
    other = next((user for user in region.output.users if user not in covered), None)
    if other is not None:
        return "the model returns it" if other.op == "output" else f"{other.name} reads it, too"
    for reader in readers:
        if reader.layout is None or reader.layout.is_single:
            return f"the region of {reader.output.name} reads it, too"
        if summands(reader, region.output) and not computes_rows(reader):
            return f"{reader.output.name} adds it, and is not computed by rows"
    if any(not layout.example.is_single_phase for layout in layouts):
        return "a convolution with a stride, or without padding, reads it"
    if len({layout.windows for layout in layouts}) > 1:
        return "convolutions with different windows read it"
    return layouts[0].windows


def computes_rows(region: Region) -> bool:
    """Whether a region is a convolution of batches of images, computed by rows."""
    return region.layout is not None and region.layout.has_rows and not region.layout.is_single


def position(region: Region, node: fx.Node) -> int:
    """The position of a node among the operands of a convolution."""
    return list(region.operands.values()).index(node)


def summands(region: Region, node: fx.Node) -> list[str]:
    """The names by which a convolution adds a node to its result."""
    assert region.layout is not None, "other regions have no summands"
    at = position(region, node)
    return [summand(number) for number, place in enumerate(region.layout.places.added) if place == at]


def place(region: Region, name: str, windows: tuple[Window, ...]) -> None:
    """Declares a tensor of a convolution inside the images that windows read."""
    layout, program = region.layout, region.program
    assert layout is not None and program is not None, "convolutions have programs"
    layout.reader_windows[name] = windows
    layout.known_interiors.clear()
    outputs = int(region.output.meta["val"].shape[1])
    region.program = layout.with_interiors(program, layout.example, outputs)
