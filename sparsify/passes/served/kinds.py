"""Kinds of calls as JSON and back: structure of arguments, extents, results, and a model's signature.

In: the `CallShape` of `model(x, scale=2.0)` and the tree of its result. Out: plain data, and equal objects.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, Final

from torch.utils import _pytree as pytree

from sparsify.errors import DataError
from sparsify.passes.capture.calls import CallShape, Leaf
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.guards import Holds
from sparsify.passes.capture.libraries import transformers_cache
from sparsify.passes.served.deferred_output import deferred_name
from sparsify.passes.served.values import decoded, encoded

# A library of which classes of results are known by name.
KNOWN: Final = "transformers"
# Keys of modules and functions inside a tree: reading the tree would import them.
IMPORTING: Final = ("__enum__", "default_factory_module")
GIVEN: Final = "given"


def encoded_shape(shape: CallShape) -> dict[str, Any]:
    """The structure of a call as data.

    Raises:
        DataError: an argument with contents comparable only within this process.
    """
    for leaf in shape.leaves:
        if leaf.kind == "constant" and not isinstance(leaf.detail[1], str):
            raise DataError(
                f"the argument {leaf.name} of a call is of class {leaf.detail[0].__name__}, whose contents are part of "
                "the graph and cannot be told in another process",
                "call the model with tensors, numbers and texts, or save without kernels=True",
            )
    leaves = [[leaf.name, leaf.kind, encoded(leaf.detail)] for leaf in shape.leaves]
    return {
        "names": list(shape.names),
        "tree": shape.tree,
        "leaves": leaves,
        "told": encoded(shape.key),
    }


def decoded_shape(data: Mapping[str, Any]) -> CallShape:
    """The structure of a call from data."""
    leaves = tuple([Leaf(name, kind, decoded(detail)) for name, kind, detail in data["leaves"]])
    return CallShape(tuple(data["names"]), data["tree"], leaves, decoded(data["told"]))


def encoded_tree(spec: pytree.TreeSpec) -> str:
    """The tree of a result as text.

    Raises:
        DataError: a class in the tree has no name registered in torch.
    """
    try:
        text = pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise DataError(
            f"the result of a call has a class that no file can name: {error}".splitlines()[0],
            "give torch.utils._pytree.register_pytree_node a serialized_type_name for it, or return tensors, tuples, "
            "lists and dicts",
        ) from None
    if any(word in text for word in IMPORTING):
        raise DataError(
            "the result of a call has an enumerated value or a defaultdict inside, which no file can name",
            "return tensors, tuples, lists and dicts",
        )
    return text


def decoded_tree(text: str) -> pytree.TreeSpec:
    """The tree of a result from text; classes of transformers are imported when a result needs them.

    Raises:
        DataError: an unregistered class.
    """
    if any(word in text for word in IMPORTING):
        raise DataError("the tree of a result names what it would import", "save the model again")
    protocol, schema = json.loads(text)
    return pytree.treespec_loads(json.dumps([protocol, _with_known_classes(schema)]))


def _with_known_classes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tree whose classes are registered in this process.

    Raises:
        DataError: an unregistered class.
    """
    name = schema["type"]
    if name is not None:
        name = _known_class(str(name))
    children = [_with_known_classes(child) for child in schema["children_spec"]]
    return {**schema, "type": name, "children_spec": children}


def _known_class(name: str) -> str:
    """The registered name of a class in a tree.

    Raises:
        DataError: an unregistered class.
    """
    is_kept = name.endswith(f".{transformers_cache.Kept.__name__}")
    if is_kept and transformers_cache.MODULE not in sys.modules:
        _imported(transformers_cache.MODULE, name)
    if name in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        return name
    module = name.rpartition(".")[0]
    if module.partition(".")[0] == KNOWN:
        if module not in sys.modules:
            return deferred_name(name)
        _imported(module, name)
    if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise DataError(
            f"results of this model are of class {name}, which is not registered in this process",
            f"import {module or 'the module that registers it'} before load",
        )
    return name


def _imported(module: str, name: str) -> None:
    """Imports a module that registers a class.

    Raises:
        DataError: the module is not installed.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise DataError(f"results of this model are of class {name}: {error}", f"install {KNOWN}") from None


def encoded_captured(captured: Captured) -> dict[str, Any]:
    """Facts of a capture, without its graph."""
    holds = captured.holds
    return {
        "shape": encoded_shape(captured.shape),
        "output": encoded_tree(captured.output),
        "extents": [list(extents) for extents in captured.extents],
        "specialised": list(captured.specialised),
        "holds": None if holds is None else [holds.text, dict(holds.names)],
        "lifted": captured.is_lifted,
        "granted": captured.is_granted,
        "ones": [
            [sorted(names), None if found is None else [found.text, dict(found.names)]]
            for names, found in captured.ones.items()
        ],
    }


def decoded_captured(data: Mapping[str, Any], graph: Any, constants: Mapping[str, Any]) -> Captured:
    """A capture from data, its graph and its constants."""
    return Captured(
        graph=graph,
        shape=decoded_shape(data["shape"]),
        output=decoded_tree(data["output"]),
        training=False,
        extents=[tuple(extents) for extents in data["extents"]],
        specialised=list(data["specialised"]),
        constants=dict(constants),
        is_lifted=data["lifted"],
        holds=None if data["holds"] is None else Holds(*data["holds"]),
        is_granted=data["granted"],
        ones={
            frozenset(names): None if found is None else Holds(*found)
            for names, found in data.get("ones", ())
        },
    )


def encoded_signature(signature: Signature) -> list[list[Any]]:
    """The parameters of a model's forward: names, kinds, and whether each has a default."""
    return [
        [name, int(found.kind), found.default is not Parameter.empty]
        for name, found in signature.parameters.items()
    ]


def decoded_signature(data: list[list[Any]]) -> Signature:
    """The signature of a model; default values of arguments are part of its graphs."""
    every: Any = type(Parameter.KEYWORD_ONLY)
    kinds = {int(kind): kind for kind in every}
    return Signature(
        [
            Parameter(str(name), kinds[kind], default=GIVEN if is_optional else Parameter.empty)
            for name, kind, is_optional in data
        ]
    )
