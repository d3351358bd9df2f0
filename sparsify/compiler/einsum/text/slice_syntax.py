"""Slices of a mode: their coordinates, and the affine index that reads them.

In: `10:2:-2` of a mode of extent 17. Out: the coordinates 10, 8, 6, 4, and the index `10 - 2*i`.
"""

from sparsify.compiler.einsum.nodes import Call, Const, Expr, Index


def places(start: int | None, stop: int | None, step: int, extent: int | None, mode: str) -> range:
    """The coordinates of a slice; negative bounds count from the end, missing ones default to an end of the mode.

    Args:
        extent: extent of the mode, `None` if unknown.
        mode: name of the mode, for messages.

    Raises:
        ValueError: a bound needs the extent, or lies before the mode; a step of 0.
    """
    if step == 0:
        raise ValueError("a slice needs a step other than 0, as in 2:10:2")
    if start is None and step > 0:
        start = 0
    if start is not None and start >= 0 and stop is not None and stop >= 0:
        return range(start, stop, step)
    if extent is None:
        raise ValueError("a slice without a stop, or with a negative bound, needs an operand's shape")
    if any(bound is not None and bound < -extent for bound in (start, stop)):
        raise ValueError(f"the slice begins before {mode}, which has {extent} entries")
    ends = (0, extent) if step > 0 else (extent - 1, -1)
    first, last = (
        end if bound is None else bound + (extent if bound < 0 else 0)
        for bound, end in zip((start, stop), ends, strict=True)
    )
    return range(first, last, step)


def index_of(name: str, read: range) -> Expr:
    """`step*name + start`, or `start - step*name` for a negative step."""
    start, step = read.start, read.step
    scaled: Expr = Index(name) if abs(step) == 1 else Call("mul", (Const(abs(step)), Index(name)))
    if step < 0:
        return Call("sub", (Const(start), scaled))
    # A slice with a stop may be shorter than its mode: not a plain index, even with a start of 0.
    return scaled if step != 1 and not start else Call("add", (scaled, Const(start)))
