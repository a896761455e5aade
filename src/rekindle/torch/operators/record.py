"""The record of one operator: facts that hold for all its overloads, which one file per family fills in; and the operators of
this package: the plain function behind each, and the bytes of its temporaries.

A captured graph holds an operator of ours as one node. A generated program calls the plain function instead, so that whoever
watches the step sees the ATen operators inside. Files that make such operators define them here when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..private import OpOverload
from .corrected import Overwrites
from .cut_call import Change, Rule, Slicing
from .strides import Strides

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


Given = Mapping[str, Any]  # argument -> its value, with real tensors
Valid = dict[tuple[str, int], torch.Tensor]  # (argument, position in it) -> what it is instead
Sample = Callable[[Given], Valid]
EVERYWHERE, ON_CPU = "everywhere", "cpu"  # values of `Operator.exact`
BY_ELEMENT, BY_ROW = "elements", "rows"  # values of `Operator.vectors`


@dataclass(frozen=True)
class Operator:
    """Facts about one operator, the same for all its overloads.

    cut : how it can be cut into slices; None: as its tags say.
    change : the arguments of a slice that name sizes of the whole.
    dense : its kernels read tensors as if they lay without gaps, or refuse others, or add up tensors with gaps in another
        order (batch norms): a slice across an inner dimension must be copied. Found by trying all ops on the CPU.
    copies_gaps : its kernels copy arguments with gaps before they compute: a slice with gaps has the bits of one without.
    exact : where slices have the bits of the whole because of the way in which it computes; "": nowhere for certain. Every
        element of its result is a copied element or number, or comes from the elements at its place by comparisons or by
        operations that IEEE 754 rounds in one way: so it is the same in a vector and alone. Other operations (exp, erf, …)
        are approximated, by one formula in vectors and another alone.
    same_bits : whether slices have the bits of the whole, as measured on a CPU (see `rewrite.probe`).
    vectors : its kernels go through memory in vectors: element by element, or along the last dimension, whichever dimension
        they add up; "": neither is known.
    sample : valid values, not random ones, for arguments that other operators make for this one.
    positive : it takes positive numbers.
    on_host : arguments that a GPU's kernel reads on the host, where the forward op left them, though fake tensors place them on
        the GPU. A kernel that is given them on the GPU ends the process.
    strides : the strides of its results on a CPU, where torch's shape rule gives others (see `strides`).
    over : overload -> calls of it that write over an argument (see `corrected`).
    flops : FLOPs of a call with these (args, kwargs, results), where torch's formula is wrong.
    flops_as : the operator whose formula serves, where torch has none.
    selects : it chooses elements by comparing them. If another run chose others (equal keys, another kernel), the gradient
        would take another path, so it must run only once.
    renames : its result is its input under a new name.
    unwritten : it allocates memory and writes nothing to it.
    run : makes the call that runs an overload outside of autograd, where the plain call computes otherwise than autograd's or
        takes more memory (see `corrected`).
    shape_only : (position of an argument that it reads for its shape only, of one in whose memory a stand-in lies). Its
        results are laid out as the former, so only contiguous tensors are replaced: a stand-in has no layout.
    saved : (what it reads in a smaller save, of which layer), in words.
    """

    cut: Rule | None = None
    change: Change | None = None
    dense: bool = False
    copies_gaps: bool = False
    exact: str = ""
    same_bits: Callable[[Slicing], bool | None] | None = None
    vectors: str = ""
    sample: Sample | None = None
    positive: bool = False
    on_host: tuple[str, ...] = ()
    strides: Strides | None = None
    over: Overwrites = field(default_factory=dict)
    flops: Callable[[Sequence[Any], Mapping[str, Any], Any], int] | None = None
    flops_as: Any = None
    selects: bool = False
    renames: bool = False
    unwritten: bool = False
    run: Callable[[Any], Callable[..., Any]] | None = None
    shape_only: tuple[int, int] | None = None
    saved: tuple[str, str] | None = None


def overloads(name: str) -> list[Any]:
    """The overloads of an operator with this full name, such as "aten::add", but for those that write into a given result."""
    namespace, _, own = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), own)
    found = [getattr(packet, x) for x in packet.overloads()]
    return [op for op in found if not any(a.is_out for a in op._schema.arguments)]


def always(q: Slicing) -> bool:
    """Slices had the bits of the whole wherever they were measured (`Operator.same_bits`)."""
    return True
