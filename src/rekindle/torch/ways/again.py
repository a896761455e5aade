"""Parts that cannot be captured: their forward runs again in backward, from their inputs.

Only a part whose forward does nothing but compute may run twice: it writes to no tensor that it has not made, and changes
no Python object, such as a list that it is given. It may set attributes of its modules to plain values, such as a count.
"""

from __future__ import annotations

import functools
import random
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
from ..compiled.saved_results import contexts
from ..measure.as_before import as_before
from ..measure.caches import without_caches
from ..measure.recording import Recorded
from ..operators.hidden_writes import BATCH_NORMS, STATISTICS, TRAINING
from ..run.own_forward import SwitchedForward
from ..run.sample import copies, owned
from ..tensors import tree
from ..tensors.instrument import Instrument
from ..tensors.lock import LOCK
from ..tensors.op_tensors import memory_state, tensors_in, written_by
from ..trace import plain_forward
from .noted_state import NotedState, Outside

WRITES = "writes to a tensor that it has not made"
LIFT = torch.ops.aten.lift_fresh.default


class AgainForward(SwitchedForward):
    """The forward of a part that runs once more in backward, from its inputs and with the same random state.

    rule : results that are saved besides, and not made again; None: none. plain : the module's own forward. keeps_caches : the
        step makes key-value caches, as `config.use_cache` says.
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
        how: dict[str, Any] = {} if self.rule is None else {"context_fn": functools.partial(contexts, self.rule)}
        run = functools.partial(checkpoint, _Rerun(model, self), *args, use_reentrant=False, **how, **kwargs)
        return run() if self.copies is None else self.copies.run(model, (args, kwargs), run)


class _Rerun:
    """A forward that may run again: each time it finds the state of the first time, and later runs change none."""

    def __init__(self, model: nn.Module, owner: AgainForward):
        self._model, self._owner, self._plain = model, owner, owner.plain
        self._noted: NotedState | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with without_caches(self._model, self._owner.keeps_caches):
            if self._noted is not None:  # torch.utils.checkpoint ends it by an exception where all is recomputed
                return self._noted.run(functools.partial(self._plain, *args, **kwargs))
            self._noted = NotedState(self._model, self._owner.outside)
            self._owner.outside = self._noted.outside
            return self._plain(*args, **kwargs)


def more_than_computes(module: nn.Module, given: Recorded) -> str:
    """What a forward of the module does beside what it returns and the plain attributes that it sets, so that it must not run
    twice, in few words; "": nothing."""
    tensors = copies(given.call.tensors, owned(module))
    args, kwargs = given.call.form.arguments(tree.unflatten(tensors, given.call.spec))
    with given.surroundings(module), as_before(module, by_parameter(args, kwargs)) as before:
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        nothing_saved = torch.autograd.graph.saved_tensors_hooks(lambda t: None, _not_saved)
        scripts = private.scripted_refused(every=True)
        hooks = hooks_noted([], tensors, [t.detach() for t in tensors])  # retain_grad does the same twice
        with torch.enable_grad(), nothing_saved, scripts, functions_refused(), hooks, _Writes() as writes:
            plain_forward(module)(*args, **kwargs)
        plain = {
            f"{path}.{k}".lstrip(".") for path, m in module.named_modules() for k, x in m.__dict__.items()
            if isinstance(x, tree.PLAIN)
        }  # fmt: skip
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


def _not_saved(_: Any) -> Any:
    raise RekindleError("forward asks for a tensor that was not saved")
