"""Random programs under searched schedules: right, by the interpreter with bounds checks, or refused by lowering."""

import random

import numpy as np
import pytest
import torch

import sparsify
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.schedule.search import beam
from sparsify.compiler.schedule.search.facts import facts_of
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.options import override
from tests.compiler.schedule.prototypes import check_memory, declared

EXTENTS = dict(zip("ijkl", (6, 5, 19, 3), strict=True))
FORMATS = {1: ("dense",), 2: ("dense", "csr", "csr"), 3: ("dense", "csf")}
VECTOR_BYTES = 32


def draw(seed: int) -> tuple[str, dict[str, torch.Tensor], torch.Tensor]:
    """A random product of two or three operands, its operands, and the result in float64."""
    take = random.Random(seed)
    terms = ["".join(take.sample("ijkl", take.choice((1, 2, 2, 3)))) for _ in range(take.choice((2, 2, 3)))]
    letters = sorted(set("".join(terms)))
    kept = [letter for letter in letters if take.random() < 0.5] or letters[:1]
    generator = torch.Generator().manual_seed(seed)
    operands, plain = {}, []
    for name, term in zip("ABC", terms, strict=False):
        shape = [EXTENTS[letter] for letter in term]
        values = torch.randn(shape, generator=generator)
        format = take.choice(FORMATS[len(term)])
        if format != "dense":
            values = values * (torch.rand(shape, generator=generator) < 0.4)
        operands[name] = values if format == "dense" else sparsify.tensor(values, format)
        plain.append(values.double().numpy())
    expected = np.einsum(f"{','.join(terms)}->{''.join(kept)}", *plain)
    factors = [f"{name}[{','.join(term)}]" for name, term in zip("ABC", terms, strict=False)]
    function = take.choice(("", "relu"))
    expected = np.maximum(expected, 0) if function else expected
    text = f"Y[{','.join(kept)}] = {function}({' * '.join(factors)})"
    return text, operands, torch.from_numpy(expected)


def schedules(text: str, operands: dict[str, torch.Tensor]) -> list[str]:
    """The searched schedules of a program with dense results, the best first."""
    program = declared(text, operands)
    (step,) = steps(program, scheduled=True)
    if step.twins:
        return []
    plain = concretize(step.program)
    if any(one.is_assembled for one in plain.declarations if one.name in plain.outputs):
        return []
    sizes = sizes_of(program, [operands[name] for name in program.inputs])
    given = facts_of(plain, lanes(plain, VECTOR_BYTES), lane_bytes(plain), sizes)
    if given is None:
        return []
    return [str(beam.completed(one.schedule, given)[0]) for one in beam.search(given, 40)[0]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_right_or_refused(first):
    right = 0
    for seed in range(first, first + 10):
        text, operands, expected = draw(seed)
        for schedule in schedules(text, operands)[:2]:
            try:
                with override(vector_bytes=VECTOR_BYTES):
                    check_memory(text, schedule, operands, expected, threads=1 + seed % 2)
                right += 1
            except (ScheduleError, DiscordantError, UnsupportedProgramError):
                continue
            except AssertionError as error:
                error.add_note(f"{text} under `{schedule}`, seed {seed}")
                raise
    assert right > 4
