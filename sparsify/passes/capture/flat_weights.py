"""The list in which recurrent layers of torch keep their parameters, beside the dictionary that all modules have.

In: an `nn.LSTM` whose `_parameters["weight_hh_l0"]` is another tensor now. Out: the same tensor in `_flat_weights`,
which is what the layer computes with. Assignments to attributes do that, entries of dictionaries do not.
"""

from collections.abc import Iterable

from torch import nn


def renew(modules: Iterable[nn.Module]) -> None:
    """Gives the recurrent layers among some modules new lists of the parameters that they have now."""
    for module in modules:
        names = vars(module).get("_flat_weights_names")
        if isinstance(module, nn.RNNBase) and names is not None:
            parameters = module._parameters
            module.__dict__["_flat_weights"] = [
                parameters[name] if name in parameters else getattr(module, name, None) for name in names
            ]
