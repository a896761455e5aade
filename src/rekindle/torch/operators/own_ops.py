"""Operators of this package: the plain function behind each, and the bytes of its temporaries.

A captured graph holds an operator of ours as one node. A generated program calls the plain function instead, so that whoever
watches the step sees the ATen operators inside. Files that make such operators define them here when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..private import OpOverload

NAMESPACE = "rekindle"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # the operators go when it goes


@dataclass(frozen=True)
class OwnOp:
    """One operator. All functions take its arguments.

    run : computes the results, on tensors of any device. fake : makes empty results of the same shapes, strides and types.
    workspace : bytes of the temporaries of one call, or a few more.
    """

    run: Callable[..., Any]
    fake: Callable[..., Any]
    workspace: Callable[..., int]


_OWN: dict[OpOverload, OwnOp] = {}


def define(schema: str, op: OwnOp, tags: Sequence[torch.Tag] = ()) -> OpOverload:
    """Register an operator under this schema, such as "sign_bits(Tensor y) -> Tensor", which must write to no argument."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)
    _LIBRARY.impl(name, op.run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", op.fake, lib=_LIBRARY)
    target: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _OWN[target] = op
    return target


def plain_function(target: Any) -> Callable[..., Any] | None:
    """The function that computes an operator of ours; None for every other target."""
    op = _OWN.get(target) if isinstance(target, OpOverload) else None
    return None if op is None else op.run


def workspace_bytes(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> int | None:
    """Bytes of the temporaries that one call of an operator of ours makes, beside its results; None for every other target.

    args, kwargs : of the call; its tensors may be fake.
    """
    op = _OWN.get(target) if isinstance(target, OpOverload) else None
    return None if op is None else op.workspace(*args, **(kwargs or {}))
