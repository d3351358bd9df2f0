"""A report page as one HTML file: styles, script and pictures inside, nothing to load.

In: `write(page, "report.html")`. Out: the path. Text of users is escaped by the template engine; the texts of equal
kernels are stored once, and beyond `MOST_CHARACTERS` further texts are replaced by the command to print the text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparsify.errors import SparsifyError
from sparsify.page import drawings
from sparsify.page.contents import Page, RegionPanel, SpyPlot
from sparsify.page.graph import Line, lines_of, tracks_of
from sparsify.page.png import data_uri, png

# Of all texts of stages together.
MOST_CHARACTERS: Final = 3_000_000
LINE: Final = 26
COLUMN: Final = 9
COLOUR: Final = (14, 124, 134)
LEFT_OUT: Final = "left out of this page for its size: sparsify explain MODEL --region {} prints it"


def write(page: Page, path: str | Path) -> Path:
    """Writes a page and returns the path.

    Raises:
        SparsifyError: the file cannot be written.
    """
    target = Path(path).expanduser()
    text = render(page)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SparsifyError(
            f"cannot write a report page to {target}: {error}", "choose another path"
        ) from None
    return target


def render(page: Page) -> str:
    """The page as text of HTML."""
    known = Environment(
        loader=PackageLoader("sparsify.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known.filters |= {"size": drawings.size, "percent": drawings.percent}
    texts, stages = stage_texts(page.regions)
    lines = lines_of(page.details.nodes)
    measured = {span.region: span.us for span in page.details.spans if span.region}
    return known.get_template("page.html.jinja").render(
        page=page,
        details=page.details,
        names={region.name for region in page.regions},
        texts=texts,
        stages=stages,
        lines=lines,
        margin=margin(lines),
        line=LINE,
        lanes=drawings.timeline(page.details.dense_spans, page.details.spans),
        roofline=drawings.roofline(page.details.works, measured, page.details.roof),
        bars=drawings.bars(page.layers),
        spies=[(spy, picture(spy)) for spy in page.details.spies],
    )


def stage_texts(regions: Sequence[RegionPanel]) -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
    """Distinct texts by identifier, and titles and identifiers of stages by region."""
    identifiers: dict[str, str] = {}
    stages: dict[str, list[tuple[str, str]]] = {}
    total = 0
    for region in regions:
        for stage in region.stages:
            text = stage.text
            if text not in identifiers and total + len(text) > MOST_CHARACTERS:
                text = LEFT_OUT.format(region.name.removeprefix("region_"))
            if text not in identifiers:
                identifiers[text] = f"text-{len(identifiers) + 1}"
                total += len(text)
            stages.setdefault(region.name, []).append((stage.title, identifiers[text]))
    return {identifier: text for text, identifier in identifiers.items()}, stages


def margin(lines: Sequence[Line]) -> dict[str, Any]:
    """The tracks of a graph as paths of a drawing, with width and height."""
    tracks = tracks_of(lines)
    columns = max((track.column for track in tracks), default=-1) + 1
    width = COLUMN * columns + 14
    paths = []
    for track in tracks:
        x = width - 12 - COLUMN * (track.column + 1)
        first, *rest = (LINE * number + LINE / 2 for number in (track.first, *track.readers))
        hooks = "".join(f"M{x + 3} {y - 3}L{x} {y - 6}M{x + 3} {y - 3}H{width - 8}" for y in rest)
        paths.append(f"M{width - 8} {first + 3}H{x + 3}L{x} {first + 6}V{rest[-1] - 6}{hooks}")
    return {"paths": paths, "width": width, "height": LINE * len(lines)}


def picture(spy: SpyPlot) -> str:
    """The data URI of a sparse tensor's picture."""
    return data_uri(png(spy.cells, COLOUR))
