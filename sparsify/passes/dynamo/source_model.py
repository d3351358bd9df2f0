"""The source model of a Dynamo graph's parameters: module types and tied names.

In: `L['self']._modules['lin']._parameters['weight']`, while Dynamo compiles. Out: `lin.weight`, of a `Linear`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx, nn
from torch._dynamo.symbolic_convert import InstructionTranslator

# `L['self']._modules['conv1']._parameters['weight']`, and its names.
MEMBER: Final = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\.(\w+)")
STORE: Final = re.compile(r"\.__dict__\['(_modules|_parameters|_buffers)'\]")
ROOT: Final = re.compile(r"^L\['(\w+)'\]")
# Types of attributes for sizes and similar constants.
PLAIN: Final = (bool, int, float, str, tuple)


@dataclass
class Origin:
    """The known facts about a model.

    Attributes:
        name: name of its class.
        kinds: class of a module, and its plain attributes, by path.
        names: all names of a parameter, by name.
    """

    name: str = "Part"
    kinds: dict[str, tuple[type[nn.Module], dict[str, Any]]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def module(self, path: str) -> nn.Module:
        """A module of the class at a path, without the effects of its constructor."""
        if path not in self.kinds:
            return nn.Module()
        kind, attributes = self.kinds[path]
        # Attribute and state methods of a class depend on its constructor.
        names = ("__init__", "__getattr__", "__setattr__", "__setstate__")
        new: nn.Module = type(kind.__name__, (kind,), {name: getattr(nn.Module, name) for name in names})()
        vars(new).update(attributes)
        return new


def origin_of(sources: Sequence[str]) -> Origin:
    """The model now compiled by Dynamo with the parameters of some sources; unnamed if unknown."""
    roots = {match[1] for source in sources if (match := ROOT.match(source))}
    try:
        scope = InstructionTranslator.current_tx().output.local_scope
    except AttributeError:  # nothing is compiled now
        scope = {}
    model = scope.get(roots.pop()) if len(roots) == 1 else None
    if not isinstance(model, nn.Module):
        return Origin()
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return Origin(
        type(model).__name__,
        {path: (type(module), plain(module)) for path, module in model.named_modules(remove_duplicate=False)},
        {name: same for same in names.values() for name in same},
    )


def plain(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module."""
    return {
        name: value for name, value in vars(module).items() if isinstance(value, PLAIN) and name[0] != "_"
    }


def source_of(node: fx.Node) -> str:
    """Dynamo's source of the value of a placeholder: `L['self']._modules['lin']._parameters['weight']`."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def member_name(source: str) -> str:
    """The qualified name of a parameter or buffer, "" for an input.

    >>> member_name("L['self']._modules['lin']._parameters['weight']")
    'lin.weight'
    >>> member_name("L['self'].__dict__['_modules']['lin']._parameters['weight']")  # of a model with changed attributes
    'lin.weight'
    """
    rest = STORE.sub(r".\1", ROOT.sub("", source))
    if not ROOT.match(source) or not ("_parameters[" in rest or "_buffers[" in rest):
        return ""
    return ".".join(match[1] or match[2] for match in MEMBER.finditer(rest))
