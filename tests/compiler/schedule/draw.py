"""Random schedules: directives over the loops and tensors of a notation, kept if applicable.

In: the notation of `C[i,k] = A[i,j] * W[j,k]`, a seed. Out: `split k k0 k1 4 masked; order j, k0, i, k1; vector k1`.
"""

import random

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.ir.node import walk
from sparsify.compiler.notation.nodes import Forall, Let, Notation
from sparsify.compiler.notation.verify import verify
from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import DiscordantError, ScheduleError

KINDS = (
    ["split"] * 3 + ["order"] * 5 + ["at"] * 3 + ["of"] * 2 + ["over"] * 2 + ["pack"] * 2 + ["vector"] * 5
    + ["unroll"] * 2 + ["parallel"] * 2 + ["transpose"] * 2 + ["pos", "fuse", "prefetch"]
)  # fmt: skip


def draw(tree: Notation, seed: int) -> str:
    """Random schedule applicable to `tree`; lowering may still refuse it."""
    rng = random.Random(seed)
    kept: list[str] = []
    for number in range(rng.choice([4, 8, 12, 16])):
        text = _directive(tree, rng, number)
        try:
            new = apply(tree, Schedule.parse(text))
            verify(new)
        except (ScheduleError, DiscordantError):
            continue
        tree = new
        kept.append(text)
    return "; ".join(kept)


def _directive(tree: Notation, rng: random.Random, number: int) -> str:
    """Random directive, possibly inapplicable."""
    nodes = list(walk(tree.body))
    loops = list(dict.fromkeys(node.index for node in nodes if isinstance(node, Forall)))
    targets = list(dict.fromkeys(node.target.tensor for node in nodes if isinstance(node, Assign)))
    temporaries = [t.name for node in nodes if isinstance(node, Let) for t in node.temporaries]
    loop, other, target = rng.choice(loops), rng.choice(loops), rng.choice(targets)
    tensor = rng.choice([*tree.inputs, *temporaries])
    place = f"at {rng.choice([*loops, 'root'])} in {rng.choice(['register', 'register', 'thread', 'memory'])}"
    kind, new = rng.choice(KINDS), f"q{number}"
    match kind:
        case "split":
            size = rng.choice([2, 3, 4, 4, 8])
            tail = [str(t) for t in (4, 2, 1) if t < size and rng.random() < 0.4]
            rest = f"tail {' '.join(tail)}" if tail else rng.choice(["", "masked"])
            return f"split {loop} {loop}o{number} {loop}i{number} {size} {rest}".strip()
        case "order":
            shuffled = ", ".join(rng.sample(loops, len(loops)))
            return f"order {rng.choice(['', '', '', f'{target}: '])}{shuffled}"
        case "at":
            return f"precompute {rng.choice(temporaries or [target])} {place}"
        case "of":
            return f"precompute {new} = {target} {place}"
        case "over":
            return f"precompute {new} = {target} over {loop} in register"
        case "pack":
            indices = ", ".join(rng.sample(loops, min(len(loops), rng.choice([1, 2, 2, 3]))))
            return f"pack {new} = {tensor}[{indices}] {place}"
        case "vector" | "unroll":
            return f"{kind} {loop}{rng.choice(['', '', f' in {target}'])}"
        case "parallel":
            return f"parallel {loop}{rng.choice(['', ' dynamic', ' static chunks 2', f' dynamic {tensor}'])}"
        case "transpose":
            return f"transpose {loop} {other} in {target}"
        case "pos":
            return f"pos {loop} {new} {tensor}"
        case "fuse":
            return f"fuse {loop} {other} {new}"
    return f"prefetch {tensor} 2"
