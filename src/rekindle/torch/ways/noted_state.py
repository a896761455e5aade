"""The state that forward reads beside its arguments, noted so that it can run again in backward as if nothing had changed.

A loop may change a global, a configuration, an adapter, a mode or a flag between forward and backward. Each is as forward found
it while forward runs again, and then as the loop left it; changes that forward itself makes meanwhile are undone.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch import nn

from ...errors import RekindleError
from ...saying.frames import line_of, users_frame
from ..situation.guards import ModuleState
from ..situation.surroundings import GLOBAL_HOOKS, flags, set_flags
from ..tensors import tree
from ..tensors.objects import put_back
from ..tensors.op_tensors import Instrument, storages_of, tensors_in

Outside = tuple[ModuleState, list[Callable[[], Any]]]  # state outside of a module's own tables, and what puts it back


class NotedState:
    """The state when forward of the module runs first. outside : what an earlier call noted, used again while it holds."""

    def __init__(self, model: nn.Module, outside: Outside | None):
        self._model, self._flags, self._context = model, flags(), contextvars.copy_context()
        tables = [t for m in model.modules() for t in (m.__dict__, m._parameters, m._buffers, m._modules)]
        self._tables = [(t, t.copy()) for t in (*tables, *GLOBAL_HOOKS, vars(os.environ)["_data"])]
        if outside is None or not outside[0].unchanged(model):
            own = ((path, k, x) for path, m in model.named_modules() for k, x in m.__dict__.items())
            plain = [f"{path}.{k}".lstrip(".") for path, k, x in own if k == "forward" or isinstance(x, tree.PLAIN)]
            guards = ModuleState(model, None, frozenset(plain))  # without those, in which forward may count
            outside = guards, guards.watch.ways_back()
        self.outside = outside
        held = chain(outside[0].watch.tensors, *(t.values() for _, t in self._tables))
        tensors = {id(t): t for t in held if isinstance(t, torch.Tensor) and not t.is_inference()}
        self._tensors = [(t, t._version, t.requires_grad) for t in tensors.values()]

    def run(self, forward: Callable[[], Any]) -> Any:
        """Run forward again.

        Raises
        ------
        RekindleError : something has changed that cannot be put back, or forward uses a tensor that was written to.
        """
        model, (guards, back) = self._model, self.outside
        now = [(t, t.copy()) for t, _ in self._tables], [t.requires_grad for t, *_ in self._tensors], flags()
        self._put(self._tables, [r for *_, r in self._tensors], self._flags)
        if changed := not guards.unchanged(model):
            back = guards.watch.ways_back()
        try:
            for way in self.outside[1] if changed else ():
                way()
            if changed and not guards.unchanged(model) and (names := guards.differences(model)):
                raise _error(model, f"{', '.join(names)} changed between its forward and this backward")
            written = [t for t, version, _ in self._tensors if t._version != version]
            with _Unused(model, written) if written else nullcontext():
                return self._context.copy().run(forward)
        finally:
            for way in back if changed or not guards.unchanged(model) else ():
                way()
            self._put(*now)

    def _put(self, tables: list[tuple[Any, Any]], trains: list[bool], found: list[Any]) -> None:
        for t, held in tables:
            put_back(t, held)
        for (t, *_), flag in zip(self._tensors, trains, strict=True):
            if t.requires_grad != flag and t.is_leaf:
                t.requires_grad_(flag)
        set_flags(found)


class _Unused(Instrument):
    """Raises an error where an operator uses one of these tensors, which were written to since the module's forward."""

    def __init__(self, model: nn.Module, written: list[torch.Tensor]) -> None:
        super().__init__()
        self._model, self._memory = model, {s._cdata for s in storages_of(written).values() if s is not None}

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if any(s is not None and s._cdata in self._memory for s in storages_of(tensors_in([args, kwargs])).values()):
            at = f" at {line_of(frame)}" if (frame := users_frame()) is not None else ""
            raise _error(self._model, f"a tensor that it uses{at} has been modified by an inplace operation since")


def _error(model: nn.Module, why: str) -> RekindleError:
    return RekindleError(
        f"{type(model).__name__} runs again in backward as it ran in forward, and {why}. Change it after backward, or call "
        "rekindle.restore(model) for such steps"
    )
