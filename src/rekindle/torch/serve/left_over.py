"""The warning that a loop keeps gradients which its plan does not count."""

from __future__ import annotations

from torch import nn

from ...sizes import format_bytes
from ..tensors.sharded import own_class


def left_over(model: nn.Module, gradients: str, size_bytes: int) -> str:
    """The text. gradients : the option with which the plan was made. size_bytes : of all gradients."""
    return (
        f"{own_class(model).__name__} was called while parameters had gradients, and its plan was made with "
        f'gradients="{gradients}": such a step may take up to {format_bytes(size_bytes)} more than planned. Set gradients to '
        'None before each step (optimizer.zero_grad()), or plan with gradients="kept"'
    )
