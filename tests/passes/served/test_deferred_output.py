"""Results without their class: the name in a folder makes objects of registered classes alone."""

import json

import pytest
from torch.utils import _pytree as pytree

from sparsify.errors import DataError
from sparsify.passes.served.deferred_output import deferred_name


def test_names_of_functions_call_nothing():
    logging = pytest.importorskip("transformers.utils.logging")
    before = logging.get_verbosity()
    leaf = {"type": None, "context": None, "children_spec": []}
    name = deferred_name("transformers.utils.logging.set_verbosity")
    tree = {"type": name, "context": json.dumps(["verbosity"]), "children_spec": [leaf]}
    result = pytree.tree_unflatten([before + 10], pytree.treespec_loads(json.dumps([1, tree])))
    assert result["verbosity"] == before + 10
    with pytest.raises(DataError, match=r"transformers.utils.logging.set_verbosity, which is no registered"):
        result.imported()
    assert logging.get_verbosity() == before
