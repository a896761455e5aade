"""Checkpoints of torch.utils.checkpoint inside of forward, while it is captured: backward runs no forward again there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..private import checkpoints_run_by, tree_map_only

Context = Callable[[bool], contextlib.AbstractContextManager[Any]]


def checkpoints_inside(context: Context = contextlib.nullcontext) -> contextlib.AbstractContextManager[None]:
    """Inside, each forward that torch.utils.checkpoint runs is run in `context(preserve)`; preserve : whether backward would
    draw the same random numbers again. With use_reentrant=True the forward is captured as a part of the graph around it, and
    not as a Function whose backward runs it again: every tensor gets the same gradient, or none, in both."""
    here = threading.get_ident()

    def inline(apply: Any, function: Any, preserve: bool, *args: Any) -> Any:
        if threading.get_ident() != here:
            return apply(function, preserve, *args)
        trained = [torch.is_tensor(x) and x.requires_grad for x in args]
        with context(preserve), torch.set_grad_enabled(torch.is_grad_enabled() and any(trained)):
            # Views, so that the gradients of an argument's uses inside are added up before those of its other uses.
            made = function(*(x.view_as(x) if t else x for x, t in zip(args, trained, strict=True)))
        if not isinstance(made, tuple):
            return made
        return tuple(x if torch.is_tensor(x) else tree_map_only(torch.Tensor, torch.Tensor.detach, x) for x in made)

    return checkpoints_run_by(context, inline)
