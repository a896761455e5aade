"""Warns once if no step uses the plan of a module.

Either the training loop calls submodules and never the planned module itself (it calls `self.model`, and the plan is on the
module around it), or the module is trained in `eval()` and was planned in `train()`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...saying import notices
from ..situation.module_paths import on_all_modules
from ..tensors import tree
from ..tensors.lock import LOCK

CALLS_BEFORE_WARNING = 3  # of one submodule while the planned forward is never called, or steps in `eval()`. A guess
# submodule -> (the planned module, calls so far)
_waiting: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], int]] = weakref.WeakKeyDictionary()
_hook: Callable[[], None] | None = None  # removes it
_checks = threading.local()


def watch(model: nn.Module) -> None:
    """Begin to count calls of the module's submodules."""
    global _hook
    for m in model.modules():
        if m is not model:
            _waiting[m] = weakref.ref(model), 0
    if _hook is None and _waiting:
        _hook = on_all_modules(_called)


def used(model: nn.Module | None) -> None:
    """Note that the planned forward was called, or that its module is gone: there is nothing to warn about."""
    global _hook
    for child, (ref, _) in list(_waiting.items()):
        if ref() is model or ref() is None:
            del _waiting[child]
    if not _waiting and _hook is not None:
        _hook()
        _hook = None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Inside, calls in this thread do not count: a check makes them."""
    before = getattr(_checks, "running", False)
    _checks.running = True
    try:
        yield
    finally:
        _checks.running = before


class StepCount:
    """Counts the calls that backward reaches. Only those are training steps; evaluation with gradients left on is none."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, result: Any) -> None:
        """Count the call with this result, once backward comes to it."""
        if getattr(_checks, "running", False):
            return
        counted = False

        def reached(gradients: Any) -> None:
            nonlocal counted
            self.count += not counted
            counted = True

        for t in tree.tensors_in(result):
            if t.grad_fn is not None:
                t.grad_fn.register_prehook(reached)


def _called(module: nn.Module, args: Any) -> None:
    if module not in _waiting or not (module.training and torch.is_grad_enabled()):
        return
    if LOCK.mine or getattr(_checks, "running", False):
        return
    ref, calls = _waiting[module]
    model = ref()
    _waiting[module] = ref, calls + 1
    if model is None or calls + 1 >= CALLS_BEFORE_WARNING:
        name = "" if model is None else type(model).__name__
        used(model)
        if model is not None:
            notices.warn(
                f"the plan of {name} is not in use: its submodules are called ({type(module).__name__}), but {name} itself "
                f"never is. Plan the module that the training loop calls, or call {name}"
            )
