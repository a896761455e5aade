"""All that a forward may read beside its arguments, noted so that it can run again in backward as if nothing had changed since.

A loop may change a global, a configuration, an adapter, a mode or a flag between forward and backward. Each is as forward found it
while forward runs again, and afterwards as the loop left it; what forward itself changes then is undone.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import RekindleError
from ...saying.frames import line_of, users_frame
from ..situation.guards import Expected, ModuleState
from ..situation.surroundings import GLOBAL_HOOKS, flags, set_flags
from ..tensors import tree
from ..tensors.instrument import Instrument
from ..tensors.objects import put_back
from ..tensors.op_tensors import storages_of, tensors_in


class Guarded(NamedTuple):
    """The state of a module outside of its own tables, which later calls share while it stays the same."""

    guards: ModuleState
    expected: Expected
    ways_back: list[Callable[[], Any]]

    @classmethod
    def of(cls, model: nn.Module) -> Guarded:
        """The present state."""
        own = ((path, k, x) for path, m in model.named_modules() for k, x in m.__dict__.items())
        plain = [f"{p}.{k}".lstrip(".") for p, k, x in own if k == "forward" or isinstance(x, tree.PLAIN)]
        guards = ModuleState(model, None, ignored := frozenset(plain))  # forward may count in plain attributes
        return cls(guards, Expected(None, ignored, guards.keys), guards.watch.ways_back())


class NotedState:
    """The state of a module when its forward runs first. known : that of an earlier call."""

    def __init__(self, model: nn.Module, known: Guarded | None):
        self._model, self._flags, self._context = model, flags(), contextvars.copy_context()
        tables = [t for m in model.modules() for t in (m.__dict__, m._parameters, m._buffers, m._modules)]
        self._tables = [(t, t.copy()) for t in (*tables, *GLOBAL_HOOKS)]
        self.guarded = known if known is not None and known.guards.unchanged(model) else Guarded.of(model)
        held = chain(self.guarded.guards.watch.tensors, *(t.values() for _, t in self._tables))
        tensors = {id(t): t for t in held if isinstance(t, torch.Tensor) and not t.is_inference()}
        self._tensors = [(t, t._version, t.requires_grad) for t in tensors.values()]

    def run(self, forward: Callable[[], Any]) -> Any:
        """Run forward again.

        Raises
        ------
        RekindleError : something has changed that cannot be put back, or forward uses a tensor that was written to.
        """
        model, (guards, expected, ways_back) = self._model, self.guarded
        now = [(t, t.copy()) for t, _ in self._tables], [t.requires_grad for t, *_ in self._tensors], flags()
        self._put(self._tables, [r for *_, r in self._tensors], self._flags)
        changed, back = not guards.unchanged(model), ways_back
        try:
            if changed:
                back = guards.watch.ways_back()
                _call(ways_back)
                if not guards.unchanged(model) and (names := expected.differences(model)):
                    raise _error(model, f"{', '.join(names)} changed between its forward and this backward")
            written = [t for t, version, _ in self._tensors if t._version != version]
            if written:
                with _Unused(model, written):
                    return self._context.copy().run(forward)
            return self._context.copy().run(forward)
        finally:
            if changed or not guards.unchanged(model):
                _call(back)
            self._put(*now)

    def _put(self, tables: list[tuple[Any, Any]], trains: list[bool], found: list[Any]) -> None:
        for t, held in tables:
            put_back(t, held)
        for (t, *_), flag in zip(self._tensors, trains, strict=True):
            if t.requires_grad != flag and t.is_leaf:
                t.requires_grad_(flag)
        set_flags(found)


class _Unused(Instrument):
    """Raises an error where an operator uses one of these tensors, which were written to."""

    def __init__(self, model: nn.Module, written: list[torch.Tensor]) -> None:
        super().__init__()
        self._model, self._memory = model, {s._cdata for s in storages_of(written).values() if s is not None}

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for s in storages_of(tensors_in([args, kwargs])).values():
            if s is not None and s._cdata in self._memory:
                at = f" at {line_of(frame)}" if (frame := users_frame()) is not None else ""
                raise _error(self._model, f"a tensor that it uses{at} has been modified by an inplace operation since its forward")


def _call(ways: list[Callable[[], Any]]) -> None:
    for way in ways:
        way()


def _error(model: nn.Module, what: str) -> RekindleError:
    return RekindleError(
        f"{type(model).__name__} runs again in backward, as forward ran, and {what}. Change it after backward, not before; or call "
        "rekindle.restore(model) for such steps"
    )
