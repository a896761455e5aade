"""The record of one operator: facts that hold for all its overloads, which one file per family fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .cut_call import Rule
from .cut_sizes import Change

if TYPE_CHECKING:
    from .known_bits import Question

Given = Mapping[str, Any]  # argument -> its value, with real tensors
Valid = dict[tuple[str, int], torch.Tensor]  # (argument, position in it) -> what it is instead
Sample = Callable[[Given], Valid]


@dataclass(frozen=True)
class Operator:
    """Facts about one operator, the same for all its overloads.

    cut : how it can be cut into slices.
    change : the arguments of a slice that name sizes of the whole.
    dense : its kernels read tensors as if they lay without gaps, or refuse others, or add up tensors with gaps in another
        order (batch norms): a slice across an inner dimension must be copied.
    same_bits : whether slices have the bits of the whole, as measured on a CPU (see `known_bits`).
    sample : valid arguments in place of random numbers, for those that other operators make for this one.
    laid_out_as : the position of the argument whose layout the first result has on a CPU: channels last, or contiguous.
    all_contiguous : all results are contiguous on a CPU.
    """

    cut: Rule
    change: Change | None = None
    dense: bool = False
    same_bits: Callable[[Question], bool | None] | None = None
    sample: Sample | None = None
    laid_out_as: int | None = None
    all_contiguous: bool = False


def overloads(name: str) -> list[Any]:
    """The overloads of an operator with this full name, such as "aten::add", but for those that write into a given result."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return [getattr(packet, x) for x in packet.overloads() if not x.endswith("out")]
