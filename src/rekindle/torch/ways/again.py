"""Parts that cannot be captured: their forward runs again in backward, from their inputs.

Only a part whose forward does nothing but compute may run twice: it writes to no tensor that it has not made, and changes
no Python object, such as a list that it is given. It may set attributes of its modules to plain values, such as a count.

The state that forward reads beside its arguments is noted, so that it can run again as if nothing had changed. A loop may
change a global, a configuration, an adapter, a mode or a flag between forward and backward. Each is as forward found it while
forward runs again, and then as the loop left it; changes that forward itself makes meanwhile are undone.
"""

from __future__ import annotations

import contextvars
import functools
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...errors import RekindleError
from ...parts.plan import SaveRule
from ...saying.frames import in_short, line_of, users_frame
from .. import private
from ..capture.flat import by_parameter
from ..capture.inner_results import hooks_noted
from ..capture.trace_errors import functions_refused
from ..compiled.saving import contexts
from ..measure.as_before import as_before, nothing_saved
from ..measure.caches import without_caches
from ..measure.recording import Recorded
from ..operators.hidden_writes import BATCH_NORMS, STATISTICS, TRAINING
from ..run.own_forward import SwitchedForward
from ..run.sample import copies, owned
from ..situation.guards import ModuleState
from ..situation.surroundings import GLOBAL_HOOKS, flags, set_flags
from ..tensors import tree
from ..tensors.lock import LOCK
from ..tensors.objects import put_back
from ..tensors.op_tensors import Instrument, memory_state, storages_of, tensors_in, written_by
from ..trace import plain_forward

Outside = tuple[ModuleState, list[Callable[[], Any]]]  # state outside of a module's own tables, and what puts it back


class NotedState:
    """The state when forward of the module runs first. outside : what an earlier call noted, used again while it holds."""

    def __init__(self, model: nn.Module, outside: Outside | None):
        self._model, self._flags, self._context = model, flags(), contextvars.copy_context()
        tables = [t for m in model.modules() for t in (m.__dict__, m._parameters, m._buffers, m._modules)]
        self._tables = [(t, t.copy()) for t in (*tables, *GLOBAL_HOOKS, vars(os.environ)["_data"])]
        if outside is None or not outside[0].unchanged(model):
            guards = ModuleState(model, None, _plain(model, "forward"))  # without those, in which forward may count
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


def _plain(model: nn.Module, *names: str) -> frozenset[str]:
    """Qualified names of the plain values among the attributes of a module, and of attributes with these names."""
    own = ((path, k, x) for path, m in model.named_modules() for k, x in m.__dict__.items())
    return frozenset(f"{path}.{k}".lstrip(".") for path, k, x in own if k in names or isinstance(x, tree.PLAIN))


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


WRITES = "writes to a tensor that it has not made"
LIFT = torch.ops.aten.lift_fresh.default


class AgainForward(SwitchedForward):
    """The forward of a part that runs once more in backward, from its inputs and with the same random state.

    rule : results that are saved besides, and not made again; None: none. keeps_caches : the step makes key-value caches, as
        `config.use_cache` says.
    """

    def __init__(self, model: nn.Module, rule: SaveRule | None = None, keeps_caches: bool = False):
        super().__init__(model)
        self.rule, self.keeps_caches = rule, keeps_caches
        self._training = model.training
        self.outside: Outside | None = None  # as the last call noted it

    def __deepcopy__(self, memo: dict[int, Any]) -> AgainForward:
        copied = super().__deepcopy__(memo)
        copied.outside = None
        return copied

    def _pickled(self) -> Any:
        return self.rule, self.keeps_caches, self._training, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        (self.rule, self.keeps_caches, self._training, self.is_off), self.outside = pickled, None

    @private.opaque_to_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        runs_plain = (
            self.is_off or LOCK.mine or not torch.is_grad_enabled() or model is None or model.training != self._training
            or private.in_func_transform() or private.in_forward_ad()
        )  # fmt: skip
        if runs_plain:
            self.count_plain(model is not None and model.training == self._training)
            return self.plain(*args, **kwargs)
        assert model is not None
        self.tally.ran += 1
        plain, noted = self.plain, list[NotedState]()

        def forward(*args: Any, **kwargs: Any) -> Any:
            with without_caches(model, self.keeps_caches):
                if noted:  # torch.utils.checkpoint ends it by an exception where all is recomputed
                    return noted[0].run(functools.partial(plain, *args, **kwargs))
                noted.append(NotedState(model, self.outside))
                self.outside = noted[0].outside
                return plain(*args, **kwargs)

        how: dict[str, Any] = {} if self.rule is None else {"context_fn": functools.partial(contexts, self.rule)}
        run = functools.partial(checkpoint, forward, *args, use_reentrant=False, **how, **kwargs)
        return run() if self.copies is None else self.copies.run(model, (args, kwargs), run)


def more_than_computes(module: nn.Module, given: Recorded) -> str:
    """Why forward of the module must not run twice, in few words: the effect that it has beside its result and the plain
    attributes that it sets; "": it has none."""
    tensors = copies(given.call.tensors, owned(module))
    args, kwargs = given.call.form.arguments(tree.unflatten(tensors, given.call.spec))
    with given.surroundings(module), as_before(module, by_parameter(args, kwargs)) as before:
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        unsaved = nothing_saved(RekindleError("forward asks for a tensor that was not saved"))
        scripts = private.scripted_refused(every=True)
        hooks = hooks_noted([], tensors, [t.detach() for t in tensors])  # retain_grad does the same twice
        with torch.enable_grad(), unsaved, scripts, functions_refused(), hooks, _Writes() as writes:
            plain_forward(module)(*args, **kwargs)
        plain = _plain(module)
        drew = python != random.getstate() or str(numpy) != str(np.random.get_state(legacy=False))
        wrote = any(map(before.tensors.differs, [*tensors, *module.buffers(), *module.parameters()]))
    effects, changes = before.effects, before.changes
    changed = changes.assigned or changes.collected or set(changes.other) - plain
    if writes.line:
        return f"{writes.line} {WRITES}"
    if wrote or drew or changed or effects.changed or effects.dropped or effects.drawn:
        return "changes more than its result"
    return ""


class _Writes(Instrument):
    """Finds where code inside writes to a tensor that it has not made. line : "train.py:88"; "": nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.line = ""
        self._made: set[Any] = set()  # weak references to storages: no other storage takes their addresses

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if not isinstance(func, private.OpOverload):  # a call of functions, whose operators are not seen
            return
        hidden = [args[i] for i in STATISTICS if args[i] is not None] if func in BATCH_NORMS and args[TRAINING] else []
        old = [t for t in (*written_by(func, args, kwargs), *hidden) if memory_state(t) not in self._made]
        if old and not self.line:
            self.line = in_short(line_of(frame)) if (frame := users_frame()) is not None else "its forward"

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        given = set(map(memory_state, tensors_in([args, kwargs])))
        self._made |= set(map(memory_state, tensors_in(out))) - (set() if func is LIFT else given)  # LIFT: of numbers
