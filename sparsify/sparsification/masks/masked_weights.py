"""Masked weights of other pruning libraries, computed from a parameter and a mask: found, checked, replaced.

In: a module after `torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.9)`, or with a parametrization
`mask * x` as in torch.ao's sparsifiers. Out: `MaskedWeight("layer", "weight", ...)`; `put_into(model, weight)`
replaces mask, original and hook by a parameter.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from sparsify.errors import DtypeError, InvalidTensorError, ShapeError, SparsifyError, public
from sparsify.recipe.suggestion import nearest

ORIGINAL: Final = "_orig"
MASK: Final = "_mask"
SPECTRAL: Final = "_u"
"""Beside an original: torch.nn.utils.spectral_norm computes the weight of it, and there is no mask."""
PARAMETRIZATIONS: Final = "parametrizations"


@dataclass(frozen=True)
class MaskedWeight:
    """A weight `mask * original` of a module.

    Attributes:
        path: path of the module in the model.
        name: name of the weight in the module.
        kind: class of the module, without parametrizations.
        original, mask: tensors, `None` if removed.
        original_name, mask_name: names of the tensors in the model.
    """

    path: str
    name: str
    kind: str
    original: Tensor | None
    mask: Tensor | None
    original_name: str
    mask_name: str

    @property
    def full_name(self) -> str:
        """The name of the weight in the model.

        >>> MaskedWeight("layers.0", "weight", "Linear", None, None, "", "").full_name
        'layers.0.weight'
        """
        return f"{self.path}.{self.name}" if self.path else self.name

    def entries(self) -> Tensor:
        """The mask, bool [*shape].

        Raises:
            InvalidTensorError, ShapeError, DtypeError: the mask does not fit the original.
        """
        if self.mask is None or self.original is None:
            there, lost = self.original_name, self.mask_name
            if self.original is None:
                there, lost = lost, there
            raise InvalidTensorError(
                f"{self.full_name} has {there} and no {lost}",
                "prune it again, or make it a plain parameter, torch.nn.utils.prune.remove",
            )
        return entries_of(self.mask, self.original, self.mask_name, self.original_name)

    def put_into(self, model: nn.Module, weight: nn.Parameter) -> None:
        """Replaces the weight by a parameter; removes mask, original and their multiplication."""
        module = model.get_submodule(self.path)
        if parametrize.is_parametrized(module, self.name):
            _take_parametrization(module, self.name)
        else:
            hooks: dict[int, Any] = dict(module._forward_pre_hooks)
            for key, hook in hooks.items():
                if _is_mask_hook(hook) and hook._tensor_name == self.name:
                    del module._forward_pre_hooks[key]
                    module._forward_pre_hooks_with_kwargs.pop(key, None)
            vars(module).pop(self.name, None)
            module._parameters.pop(self.name + ORIGINAL, None)
            module._buffers.pop(self.name + MASK, None)
            module._non_persistent_buffers_set.discard(self.name + MASK)
        setattr(module, self.name, weight)


def masked_weights(model: nn.Module) -> Iterator[MaskedWeight]:
    """The masked weights of a model, under all their names."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for hook in module._forward_pre_hooks.values():
            if not _is_mask_hook(hook):
                continue
            name = hook._tensor_name
            original, mask = name + ORIGINAL, name + MASK
            yield MaskedWeight(
                path,
                name,
                type(module).__name__,
                module._parameters.get(original),
                module._buffers.get(mask),
                prefix + original,
                prefix + mask,
            )
        if parametrize.is_parametrized(module):
            yield from _parametrized(path, module)


def entries_of(mask: Tensor, original: Tensor, mask_name: str, original_name: str) -> Tensor:
    """A mask as bool [*shape], checked against the masked tensor.

    Raises:
        InvalidTensorError: an entry that is neither 0 nor 1; a NaN or infinite masked entry of the original,
            unchanged by the product with 0.
        ShapeError: another shape.
        DtypeError: complex numbers.
    """
    if mask.shape != original.shape:
        raise ShapeError(f"{mask_name} is {list(mask.shape)}, {original_name} {list(original.shape)}")
    if mask.is_complex():
        raise DtypeError(f"{mask_name} is {mask.dtype}", "a mask of 0 and 1")
    entries = mask.detach() != 0
    others = entries & (mask.detach() != 1)
    if bool(others.any()):
        coordinates = others.nonzero()[0].tolist()
        value = mask.detach()[tuple(coordinates)].item()
        raise InvalidTensorError(
            f"{mask_name} is {value:.3g} at {coordinates}", "the entries of a mask are 0 and 1"
        )
    lost = ~entries & ~original.detach().isfinite()
    if bool(lost.any()):
        coordinates = lost.nonzero()[0].tolist()
        value = original.detach()[tuple(coordinates)].item()
        raise InvalidTensorError(
            f"{original_name} is {value:.3g} at {coordinates}, outside of its mask",
            "0 times it is nan; set it to 0",
        )
    return entries.to(original.device)


@public
def merge_masks(state: Mapping[str, Any], masks: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """The state of a model with plain weights in place of masked ones, with zeros at masked entries.

    The pairs are `weight_orig` and `weight_mask` of torch.nn.utils.prune, and `parametrizations.weight.original` with
    `parametrizations.weight.0.mask`. All other tensors are unchanged, in order.

    Args:
        state: state of a checkpoint, not modified.
        masks: masks missing in the state, by the name of the weight. torch.ao's sparsifiers keep masks in
            `sparsifier.state_dict()["state"][name]["mask"]`.

    Raises:
        InvalidTensorError, ShapeError, DtypeError: a mask that fits no weight, or a weight without its mask.
        SparsifyError: no mapping, or two tensors for one weight.

    >>> state = {"fc.weight_orig": torch.tensor([3.0, 2.0]), "fc.weight_mask": torch.tensor([1.0, 0.0])}
    >>> merge_masks(state)["fc.weight"].tolist()
    [3.0, 0.0]
    >>> merge_masks({"fc.weight": torch.tensor([3.0, 2.0])}, {"fc.weight": torch.tensor([0, 1])})["fc.weight"].tolist()
    [0.0, 2.0]
    """
    for mapping in (state, masks or {}):
        if not isinstance(mapping, Mapping):
            raise SparsifyError(f"merge_masks of a {type(mapping).__name__}", "a mapping of names to tensors")
    pairs = dict(_pairs(state))
    inside = {mask for _, several in pairs.values() for mask in several}
    left = dict(masks or {})
    merged_state: dict[str, Any] = {}
    for name, value in state.items():
        if name in inside:
            continue
        merged, several = pairs.get(name, (name, []))
        if merged not in left and not several:
            merged = name
        if merged in merged_state or (merged != name and merged in state):
            raise SparsifyError(f"the state has {merged} and {name}", "leave one of them out")
        named_masks = [(mask, state[mask]) for mask in several]
        if merged in left:
            named_masks.append((f"the mask of {merged}", left.pop(merged)))
        for label, tensor in ((name, value), *named_masks) if named_masks else ():
            if not isinstance(tensor, Tensor):
                raise InvalidTensorError(f"{label} is a {type(tensor).__name__}", "a tensor")
        entries = [entries_of(mask, value, label, name) for label, mask in named_masks]
        merged_state[merged] = torch.where(torch.stack(entries).all(0), value, 0) if entries else value
    if left:
        raise InvalidTensorError(
            f"there is no weight {min(left)} for a mask{nearest(min(left), merged_state)}",
            "the name of a weight",
        )
    return merged_state


def _pairs(state: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Names of weights and of their masks, by the name of the original; a parametrization may have no mask.

    Raises:
        InvalidTensorError: a mask without an original, or an original of torch.nn.utils.prune without a mask.
    """
    for name in map(str, state):
        head, _, last = name.rpartition(".")
        weight = name.removesuffix(ORIGINAL).removesuffix(MASK)
        if name == weight + ORIGINAL and weight + MASK in state:
            yield name, (weight, [weight + MASK])
        elif last in (f"weight{ORIGINAL}", f"weight{MASK}") and not any(
            weight + other in state for other in ("", MASK if last.endswith(ORIGINAL) else ORIGINAL, SPECTRAL)
        ):
            lost = weight + (MASK if last.endswith(ORIGINAL) else ORIGINAL)
            raise InvalidTensorError(f"the state has {name} and no {lost}", "the state of a whole model")
        elif last == "original" and f"{PARAMETRIZATIONS}." in head:
            masks = list(
                itertools.takewhile(state.__contains__, (f"{head}.{at}.mask" for at in itertools.count()))
            )
            inside = sum(str(other).startswith(f"{head}.") for other in state)
            if inside == 1 + len(masks):
                owner, _, weight = head.rpartition(".")
                yield name, (f"{owner.removesuffix(PARAMETRIZATIONS)}{weight}", masks)


def _is_mask_hook(hook: Any) -> bool:
    """Whether a hook multiplies a parameter with a mask before each call, as torch.nn.utils.prune does."""
    return (
        isinstance(hook, BasePruningMethod)
        and isinstance(getattr(hook, "_tensor_name", None), str)
        and type(hook).apply_mask is BasePruningMethod.apply_mask
        and type(hook).__call__ is BasePruningMethod.__call__
    )


def _parametrized(path: str, module: nn.Module) -> Iterator[MaskedWeight]:
    """The weights of a module with masks as the only parametrizations."""
    parametrizations: Any = module.parametrizations
    kind = parametrize.type_before_parametrizations(module).__name__
    prefix = f"{path}." if path else ""
    for name, several in parametrizations.items():
        if not several.is_tensor or not isinstance(several.original, nn.Parameter):
            continue
        masks = [_mask_of(one, several.original) for one in several]
        if masks and all(mask is not None for mask in masks):
            mask = masks[0] if len(masks) == 1 else torch.stack(masks).prod(0)  # type: ignore[arg-type]
            parameter = f"{prefix}{PARAMETRIZATIONS}.{name}"
            yield MaskedWeight(
                path, name, kind, several.original, mask, f"{parameter}.original", f"{parameter}.0.mask"
            )


def _mask_of(one: nn.Module, original: Tensor) -> Tensor | None:
    """The mask multiplied by a parametrization, of the shape of the original; None for other parametrizations.

    A mask is the only tensor of the parametrization, a buffer `mask`, and `one(x) == one(1) * x`.
    """
    buffers, others = dict(one.named_buffers()), list(one.parameters())
    if list(buffers) != ["mask"] or others or original.is_meta or not original.is_floating_point():
        return None
    ones = torch.ones_like(original, requires_grad=False)
    probe = torch.linspace(1, 2, original.numel(), dtype=original.dtype, device=original.device)
    probe = probe.view(original.shape)
    with torch.no_grad():
        try:
            mask, masked = one(ones), one(probe)
        except Exception:  # a mask of another shape, refused by the module itself, too
            return buffers["mask"] if buffers["mask"].shape != original.shape else None
        if not isinstance(mask, Tensor) or not isinstance(masked, Tensor):
            return None
        is_product = mask.shape == masked.shape and torch.equal(
            torch.nan_to_num(masked), torch.nan_to_num(mask * probe)
        )
    return mask if is_product else None


def _take_parametrization(module: nn.Module, name: str) -> None:
    """Removes the parametrizations of a tensor; copies of the module may share the class."""
    kind = type(module)
    parametrizations: Any = module.parametrizations
    del parametrizations[name]
    if len(parametrizations):
        inherited = {
            key: value for key, value in vars(kind).items() if key not in (name, "__dict__", "__weakref__")
        }
        module.__class__ = type(kind.__name__, kind.__bases__, inherited)
    else:
        del module._modules[PARAMETRIZATIONS]
        module.__class__ = kind.__bases__[0]
