"""The text behind a kernel: einsum, formats, schedule, notation, loops and generated C++ of each step.

In: a `Kernel`. Out: text for people, stage by stage.
"""

from sparsify.compiler.generated import GeneratedStep
from sparsify.compiler.kernel import Kernel
from sparsify.compiler.notation import printer
from sparsify.compiler.plan import DenseProduct


def explain_kernel(kernel: Kernel) -> str:
    """All stages of all steps."""
    parts = ["einsum", _indent(str(kernel.program))]
    for number, step in enumerate(kernel.steps, 1):
        if isinstance(step, DenseProduct):
            parts += [f"step {number}  torch", _indent(str(step))]
            continue
        parts += [f"step {number}  {step.library}", *_stages(step)]
    return "\n".join(parts)


def _stages(step: GeneratedStep) -> list[str]:
    stages = step.stages
    parts = []
    if step.twins:
        parts += ["formats", _indent("\n".join(f"{n} is read as {f}" for n, f in step.twins.items()))]
    parts += ["schedule", _indent(str(stages.schedule) or "none")]
    parts += ["notation", _indent(printer.notation(stages.notation, multiline=True))]
    parts += ["loops", _indent(str(stages.loops)), "C++", _indent(stages.cpp)]
    return parts


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
