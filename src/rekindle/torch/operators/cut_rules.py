"""The joint table of the records of operators, and the table of rules: for the name of an op, how it may be cut."""

from __future__ import annotations

from typing import Any

import torch

from ..private import OpOverload
from . import cut_indexing, cut_layers, cut_products, cut_saves, cut_views, norms
from .cut_call import Rule, broadcast
from .cut_sizes import CHANGES
from .own_ops import NAMESPACE

# Full name of an operator -> its record.
OPERATORS = {f"aten::{name}": op for family in (norms,) for name, op in family.OPERATORS.items()}

# Ops of element by element that torch does not mark so; all overloads.
_ELEMENT_WISE = (
    "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "leaky_relu_backward", "elu_backward",
    "softplus_backward", "log_sigmoid_forward", "log_sigmoid_backward", "mish_backward", "softshrink_backward",
    "hardshrink_backward", "_prelu_kernel", "_prelu_kernel_backward", "masked_fill", "complex",
)  # fmt: skip

# Name of an op, of all its overloads -> its rule.
RULES: dict[str, Rule] = {f"aten::{name}": broadcast for name in _ELEMENT_WISE}
for _theme in (cut_products, cut_layers, cut_views, cut_indexing):
    RULES |= {f"aten::{name}": rule for name, rule in _theme.RULES.items()}
RULES |= {name: op.cut for name, op in OPERATORS.items()}
CHANGES |= {name: op.change for name, op in OPERATORS.items() if op.change is not None}
# The operators of this package; where arguments name sizes, these are changed too.
RULES |= {f"{NAMESPACE}::{name}": rule for name, rule in cut_saves.RULES.items()}
CHANGES |= {f"{NAMESPACE}::{name}": change for name, change in cut_saves.CHANGES.items()}

# Operators whose slices across an inner dimension must be copied (`Operator.dense`).
# Found by trying all ops of the table on the CPU.
DENSE = {"aten::adaptive_max_pool3d_backward", *(name for name, op in OPERATORS.items() if op.dense)}

_COPIES_GAPS = {"aten::convolution", "aten::convolution_backward"}


def rule_of(target: Any) -> Rule | None:
    """The rule of an operator; None: it is not known, or it writes to an argument."""
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return None
    if torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags:
        return broadcast
    return RULES.get(target._schema.name)


def wants_dense(target: Any) -> bool:
    """Whether the op computes wrongly, or other bits, on slices that are views with gaps; copies of them serve."""
    return isinstance(target, OpOverload) and target._schema.name in DENSE


def copies_gaps(target: Any) -> bool:
    """Whether the op copies arguments with gaps before it computes: a slice with gaps has the bits of one without."""
    return isinstance(target, OpOverload) and target._schema.name in _COPIES_GAPS
