"""`python -m experiments.serving [--rows encoder-8 ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from experiments.foundation import command
from experiments.serving.networks import encoder, residual
from experiments.serving.texts import decoder, mixture
from sparsify.bench.harness import Clock
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured

# Required ratios against OpenVINO of the same precision, by texts, dtype and per cent of zeros.
ENCODERS: Final[Mapping[tuple[int, str, int], float]] = {
    (8, "float32", 0): 1.0,
    (8, "float32", 60): 3.0,
    (8, "float32", 80): 4.5,
    (8, "float32", 90): 6.0,
    (8, "bfloat16", 0): 1.0,
    (8, "bfloat16", 60): 1.6,
    (8, "bfloat16", 80): 2.5,
    (8, "bfloat16", 90): 3.5,
    (1, "float32", 80): 4.0,
    (1, "float32", 90): 5.0,
    (1, "bfloat16", 80): 2.2,
    (1, "bfloat16", 90): 3.0,
    (8, "int8", 80): 1.0,
}
# Required ratios of ResNet-50 against OpenVINO, by images and per cent of zeros.
LARGE: Final = {(1, 80): 1.3, (1, 90): 1.9, (8, 80): 1.3, (8, 90): 1.9}
# Required ratios of ResNet-20 and ResNet-56 against inductor, by per cent of zeros.
TINY: Final = {50: 1.0, 70: 1.2, 90: 1.6}
# Required ratios of decoders against torch, by dtype and per cent of zeros.
DECODERS: Final = {("bfloat16", 50): 1.6, ("bfloat16", 80): 3.0, ("float32", 80): None}
# Required ratios of mixtures of experts against transformers, by tokens.
MIXTURES: Final = {1: 1.0, 16: 1.0, 64: 1.2, 1024: 1.7}
CASES: Final[Mapping[str, command.Make]] = (
    {
        f"encoder-{batch}-{dtype}-{zeros}": partial(encoder, zeros, batch, dtype=dtype, openvino=asked)
        for (batch, dtype, zeros), asked in ENCODERS.items()
    }
    | {"distilbert-1-80": partial(encoder, 80, 1, layers=6, onnx_runtime=4.0)}
    | {
        f"resnet50-{batch}-{zeros}": partial(residual, "resnet50", zeros, batch, openvino=asked)
        for (batch, zeros), asked in LARGE.items()
    }
    | {
        f"resnet{6 * blocks + 2}-{batch}-{zeros}": partial(
            residual, "resnet20", zeros, batch, inductor=asked, blocks=blocks
        )
        for blocks in (3, 9)
        for batch in (1, 32)
        for zeros, asked in TINY.items()
    }
    | {
        f"decoder-{dtype}-{zeros}": partial(decoder, zeros, dtype=dtype, asked=asked)
        for (dtype, zeros), asked in DECODERS.items()
    }
    | {f"mixture-{count}": partial(mixture, count, asked=asked) for count, asked in MIXTURES.items()}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 0, or 2 if no row matches."""
    return command.main(argv, run_row, tuple(CASES), "serving")


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measurements of one row as plain data, under the row's name."""
    case = CASES[name](place)
    case.name = name
    return measured(case, quick, clock)
