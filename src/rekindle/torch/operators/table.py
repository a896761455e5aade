"""The joint table of the records of operators, and the questions that it answers about how an op is cut and overwrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..private import OpOverload
from . import convolutions, indexing, losses, norms, pointwise, pools, products, reductions, views
from .corrected import FITS
from .cut_call import Rule, broadcast
from .pool_offsets import OPERATORS as POOL_OFFSETS
from .random_in_place import OPERATORS as DRAWS
from .record import NAMESPACE, Operator, overloads
from .small_saves import OPERATORS as SMALL_SAVES

_FAMILIES = (norms, convolutions, products, pools, losses, reductions, indexing, views, pointwise)
# Full name of an operator -> its record.
OPERATORS = {f"aten::{name}": op for family in _FAMILIES for name, op in family.OPERATORS.items()}
OPERATORS |= {f"{NAMESPACE}::{name}": op for name, op in (SMALL_SAVES | POOL_OFFSETS | DRAWS).items()}

_UNKNOWN = Operator()

# Name of an op, of all its overloads -> how it may be cut.
RULES: dict[str, Rule] = {name: op.cut for name, op in OPERATORS.items() if op.cut is not None}
# op -> {position of an argument: call that writes over it}
OVERWRITES = {target: calls for op in OPERATORS.values() for target, calls in op.over.items()}


def by_overload(field: str) -> dict[Any, Any]:
    """Overload of an operator -> this field of its record, where the record has it."""
    given = {name: getattr(op, field) for name, op in OPERATORS.items()}
    return {target: x for name, x in given.items() if x for target in overloads(name)}


def record_of(name: str) -> Operator:
    """The record of the operator with this full name; one that says nothing where there is none."""
    return OPERATORS.get(name, _UNKNOWN)


def rule_of(target: Any) -> Rule | None:
    """The rule by which an operator is cut; None: it is not known, or it writes to an argument."""
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return None
    if torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags:
        return broadcast
    return RULES.get(target._schema.name)


def wants_dense(target: Any) -> bool:
    """Whether the op computes wrongly, or other bits, on slices that are views with gaps; copies of them serve."""
    return isinstance(target, OpOverload) and record_of(target._schema.name).dense


def copies_gaps(target: Any) -> bool:
    """Whether the op copies arguments with gaps before it computes: a slice with gaps has the bits of one without."""
    return isinstance(target, OpOverload) and record_of(target._schema.name).copies_gaps


def may_overwrite(target: Any, position: int, args: Sequence[Any]) -> bool:
    """Whether the call of `target` that writes over the argument at this position does so for such arguments, fake ones too.
    The graph counts no memory for an overwrite, so it asks the same question as the step that runs."""
    fits = FITS.get(OVERWRITES[target][position])
    return fits is None or fits(*args)
