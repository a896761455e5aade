"""While tracing, what forward branches on: values of integer and boolean tensors, where they can be known.

Libraries look whether a mask masks anything, and where it does not they call another kernel, which rounds otherwise.
Tensors without data cannot tell. What forward makes from shapes alone is computed here when it is asked for; what depends
on integer inputs, from the sample's. Branches of the second kind are part of what was captured (`Branch`): a call whose
inputs lead elsewhere is not the one that was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten

_ASK = {aten._local_scalar_dense.default, aten.equal.default}  # they give Python values
_BY_SHAPE = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}
_UNWRITTEN = {aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty,
              aten.new_empty_strided}  # fmt: skip
LARGEST = 2**24  # elements: a mask over a sequence of 4,096


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a tensor comes about. op : None for the sample's tensor number `which`, else `which` of its results.

    args : positional and keyword arguments, recipes in the place of tensors.
    by_inputs : whether the value depends on the sample's.
    """

    op: Any
    args: Any
    which: int
    by_inputs: bool


@dataclass(frozen=True)
class Branch:
    """A question that forward asked about its inputs, and the answer it took."""

    recipe: Recipe
    answer: bool


def same_branches(branches: Sequence[Branch], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether forward would take the same branches with these inputs."""
    done: dict[Recipe, Any] = {}
    with torch.no_grad():
        return all(_compute(b.recipe, tensors, done) == b.answer for b in branches)


def _compute(recipe: Recipe, tensors: Sequence[torch.Tensor], done: dict[Recipe, Any]) -> Any:
    """The value, on the CPU: integers are the same on every device."""
    if recipe.op is None:
        return tensors[recipe.which].cpu()

    def real(x: Any) -> Any:
        if isinstance(x, Recipe):
            if x not in done:
                done[x] = _compute(x, tensors, done)
            return done[x]
        return torch.device("cpu") if isinstance(x, torch.device) else x

    args, kwargs = pytree.tree_map(real, recipe.args)
    if recipe.op._overloadpacket in _BY_SHAPE:
        kwargs = kwargs | {"device": torch.device("cpu")}
    made = recipe.op(*args, **kwargs)
    return made[recipe.which] if isinstance(made, tuple | list) else made


class KnownValues(TorchDispatchMode):
    """Answers what forward asks about tensors that are known.

    given : what stands for the inputs while tracing.
    sample : their values; None: unknown.
    """

    supports_higher_order_operators = True

    def __init__(self, given: Sequence[torch.Tensor], sample: Sequence[torch.Tensor] | None) -> None:
        super().__init__()
        self.branches: list[Branch] = []
        self._sample = sample or ()
        self._done: dict[Recipe, Any] = {}
        self._known: dict[int, tuple[torch.Tensor, Recipe]] = {}  # the tensor too, or its id would be given away
        for i, t in enumerate(given if sample is not None else ()):
            if _counts(t):
                self._known[id(t)] = t, Recipe(None, (), i, by_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        given = _tensors((args, kwargs))
        if func in _ASK and given and all(id(t) in self._known for t in given):
            recipe = self._recipe(func, args, kwargs, given, 0)
            # A number may differ in every call, and then each would be another graph.
            if not recipe.by_inputs or func is aten.equal.default or given[0].dtype == torch.bool:
                return self._answer(recipe)
        out = func(*args, **kwargs)
        made = _tensors(out)
        if _tells(func, [t for t in given if id(t) not in self._known], [*given, *made]) and made:
            for i, t in enumerate(made):
                self._known[id(t)] = t, self._recipe(func, args, kwargs, given, i)
        elif any(id(t) in self._known for t in _may_change(func, args, kwargs)):
            self._known.clear()  # and what shares its memory
        return out

    def _answer(self, recipe: Recipe) -> Any:
        with _disable_current_modes(), torch.no_grad():
            answer = _compute(recipe, self._sample, self._done)
        if recipe.by_inputs:
            self.branches.append(Branch(recipe, answer))
        return answer

    def _recipe(self, func: Any, args: Any, kwargs: Any, given: Sequence[torch.Tensor], which: int) -> Recipe:
        def taken(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in self._known:
                return self._known[id(x)][1]
            with _disable_current_modes():
                return torch.empty(x.shape, dtype=x.dtype, device="meta")  # its shape alone matters

        by_inputs = any(self._known[id(t)][1].by_inputs for t in given if id(t) in self._known)
        return Recipe(func, pytree.tree_map(taken, (args, kwargs)), which, by_inputs)


def _counts(t: torch.Tensor) -> bool:
    """Whether a tensor holds whole numbers, not too many."""
    return not t.dtype.is_floating_point and not t.dtype.is_complex and t.numel() <= LARGEST


def _tells(func: Any, unknown: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the results of an op are known where it takes known tensors, save these; `tensors` : all of both."""
    return (
        (not unknown or func._overloadpacket in _BY_SHAPE)
        and not func._schema.is_mutable
        and func._overloadpacket not in _UNWRITTEN
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(map(_counts, tensors))
    )


def _may_change(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that the op writes to; or of which it gives views, through which others may."""
    writes = func._schema.is_mutable
    if not writes and all(r.alias_info is None for r in func._schema.returns):
        return []
    given = [(a, args[i] if i < len(args) else kwargs.get(a.name)) for i, a in enumerate(func._schema.arguments)]
    return _tensors([x for a, x in given if not writes or (a.alias_info is not None and a.alias_info.is_write)])


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]
