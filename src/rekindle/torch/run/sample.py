"""Copies the tensors of a call for each step that is run with them, so that the user's own are never written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..operators.memory_order import elements_spanned
from ..private import negated_view
from ..tensors import tree
from ..tensors.op_tensors import storage_of

_ALIGNMENT = 512  # bytes: kernels may be chosen by the alignment of their inputs, so copies have the same


class Sample:
    """The arguments of a call of a model.

    tensors : the user's tensors. names : a readable place of each, such as "sample[0]".
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], fake: bool):
        self.tensors, self._spec = tree.flatten((args, dict(kwargs)))
        places = tree.paths(self._spec, "")
        self.names = ["sample" + places[i].removeprefix("[0]").removeprefix("[1]") for i in range(len(self.tensors))]
        self._fake = fake
        self._owned = owned(model)

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """(args, kwargs, the leaves of their tensors), copied as `copies` says. Fake tensors hold no numbers that could be
        overwritten: they are not copied, only cut off the user's graph."""
        if self._fake:
            twins = [t if t.is_leaf else trained_as(t.detach(), t) for t in self.tensors]
        else:
            twins = copies(self.tensors, self._owned)
        args, kwargs = tree.unflatten(twins, self._spec)
        return args, kwargs, [*map(leaf_of, twins)]

    @property
    def objects(self) -> list[Any]:
        """Everything among the arguments and in their containers that is no tensor."""
        return [x for x in tree.leaves(self._spec) if not isinstance(x, tree.Leaf)]

    def is_owned(self, i: int) -> bool:
        """Whether the tensor lies in a parameter or buffer of the model."""
        return _storage(self.tensors[i]) in self._owned


def owned(model: nn.Module) -> set[Any]:
    """The storages of a model's own tensors. They are passed as they are, since forward would not recognise copies."""
    return {_storage(t) for t in [*model.parameters(), *model.buffers()]}


def copies(tensors: list[torch.Tensor], apart_from: set[Any]) -> list[torch.Tensor]:
    """Copies of tensors with the same strides, which share storage if the given tensors do. A copy of a leaf is a leaf, and
    one of another trained tensor is made from a leaf: autocast treats them differently. apart_from : storages whose tensors
    are not copied."""
    together: dict[Any, list[int]] = {}  # storage -> tensors that lie in it
    twins = list(tensors)
    for i, t in enumerate(tensors):
        key = _storage(t)
        if key is None or type(t) not in (torch.Tensor, nn.Parameter):
            twins[i] = trained_as(t.detach().clone(), t)
        elif key not in apart_from:
            together.setdefault(key, []).append(i)
        elif not t.is_leaf:
            twins[i] = trained_as(t.detach(), t)
    for ids in together.values():
        _copy_storage([tensors[i] for i in ids], ids, twins)
    return twins


def _storage(t: torch.Tensor) -> Any:
    s = storage_of(t)
    return None if s is None else s._cdata


@torch.no_grad()
def _copy_storage(tensors: list[torch.Tensor], ids: list[int], twins: list[torch.Tensor]) -> None:
    """Copy tensors of one storage into one new storage, which holds only the part that they use."""
    ends = [t.storage_offset() + elements_spanned(t) for t in tensors]
    low = min(t.storage_offset() * t.element_size() for t in tensors) // _ALIGNMENT * _ALIGNMENT
    high = max(end * t.element_size() for end, t in zip(ends, tensors, strict=True))
    device, storage = tensors[0].device, tensors[0].untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, low, (max(0, high - low),), (1,))
    made = whole.clone().untyped_storage()
    for i, t in zip(ids, tensors, strict=True):
        at = t.storage_offset() - low // t.element_size()
        twin = torch.empty(0, dtype=t.dtype, device=device).set_(made, at, t.shape, t.stride())
        twin = twin.conj() if t.is_conj() else twin
        twins[i] = trained_as(negated_view(twin) if t.is_neg() else twin, t)


def trained_as(twin: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor as a parameter, another leaf, or made from a leaf, as the other one is."""
    if isinstance(like, nn.Parameter) and not isinstance(twin, nn.Parameter):
        return nn.Parameter(twin, requires_grad=like.requires_grad)
    twin.requires_grad_(like.requires_grad)
    with torch.enable_grad():
        return twin if like.is_leaf else _Made.apply(twin)


def leaf_of(t: torch.Tensor) -> torch.Tensor:
    """The leaf that a tensor of `trained_as` is, or is made from."""
    return t if t.is_leaf else t.grad_fn.next_functions[0][0].variable  # type: ignore[no-any-return, union-attr]


class _Made(torch.autograd.Function):
    """Makes of a leaf a tensor that is none and no view either, in the same memory."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
