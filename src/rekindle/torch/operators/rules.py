"""Properties of single ATen ops: which must run only once, which draw random numbers, how to run one outside of autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from ..private import OpOverload
from .corrected import fitted
from .record import NAMESPACE, plain_function
from .table import OPERATORS, by_overload

aten = torch.ops.aten

# Ops whose result is their input under a new name.
PASS_THROUGH = {*by_overload("renames")}

# Ops that allocate memory and write nothing to it; all overloads.
UNWRITTEN = {getattr(aten, name.removeprefix("aten::")) for name, op in OPERATORS.items() if op.unwritten}

_SELECTIONS = {name.removeprefix("aten::") for name, op in OPERATORS.items() if op.selects}
_COMMUNICATION = {"_c10d_functional", "c10d", "c10d_functional", "_dtensor"}
KNOWN = ("aten", "prims", NAMESPACE)  # namespaces whose ops do what their schemas say
_RANDOM = torch.Tag.nondeterministic_seeded
_VARYING = getattr(torch.Tag, "nondeterministic_bitwise", None)  # tags that a release may lack
_ALIASING = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)


def one_view(node: fx.Node, index: int) -> tuple[Any, tuple[Any, ...]] | None:
    """(op, arguments) that make one of the views that `node` makes, without the others; None if there is no such op.

    An unrolled network takes its steps out of its input one by one, and would make all views each time.
    """
    arguments: Any = node.args
    base, *rest = arguments
    if index < 0 or node.kwargs or any(isinstance(x, fx.Node) for x in rest):
        return None
    if node.target is aten.unbind.int:
        return aten.select.int, (base, rest[0] if rest else 0, index)
    if node.target in (aten.split.Tensor, aten.split_with_sizes.default):
        size, dim = rest[0], rest[1] if len(rest) > 1 else 0
        begin = index * size if isinstance(size, int) else sum(size[:index])
        length = node.meta["val"][index].shape[dim]
        return aten.slice.Tensor, (base, dim, begin, begin + int(length))
    return None


def selects(target: Any) -> bool:
    """Whether the op chooses elements by comparing them: where some are equal, another kernel may choose others."""
    return isinstance(target, OpOverload) and target._schema.name.split("::")[-1] in _SELECTIONS


def draws_random(target: Any) -> bool:
    """Whether the op draws from the default random generator of its device."""
    return isinstance(target, OpOverload) and _RANDOM in target.tags


def must_save(target: Any, devices: set[str]) -> bool:
    """Whether the op must run only once.

    True for selections, communication, copies between devices, assertions, ops that write to an argument, kernels whose bits
    vary from run to run, and targets that are no ops.

    devices : types of the devices on which its inputs and results lie.
    """
    if not isinstance(target, OpOverload):
        return True
    name = target._schema.name.split("::")[-1]
    return (
        name in _SELECTIONS
        or target.namespace in _COMMUNICATION
        or name.startswith("_assert")
        or target._schema.is_mutable
        or len(devices) > 1
        or devices == {"cuda"}
        and _VARYING is not None
        and _VARYING in target.tags
    )


_RUNS = by_overload("run")
OVERSIZED = {target for target, run in _RUNS.items() if run is fitted}  # their kernels compute in a larger storage


@cache
def runnable(target: Any) -> Callable[..., Any]:
    """The function that runs the op outside of autograd as autograd runs it, in no more memory than its results need."""
    own = plain_function(target)
    if own is not None:
        return own
    return _RUNS[target](target) if target in _RUNS else target


def as_complex(t: torch.Tensor) -> torch.Tensor:
    """`torch.view_as_complex`, of a copy where the strides allow no such view."""
    pairs = t.stride(-1) == 1 and all(n % 2 == 0 for n in t.stride()[:-1])
    return torch.view_as_complex(t if pairs else t.contiguous())


def returns_new(target: Any) -> bool:
    """Whether the op's results surely have storages of their own at run time, so that later ops may overwrite them."""
    return isinstance(target, OpOverload) and target.namespace in KNOWN and _ALIASING not in target.tags
