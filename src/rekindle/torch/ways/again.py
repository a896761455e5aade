"""Parts that cannot be captured: their forward runs again in backward, from their inputs.

Only a part whose forward does nothing but compute may run twice: it writes to no buffer or input, and changes no Python object,
such as a list that it is given. It may set attributes of its modules to plain values, such as a count or a dtype: these are put
back as they were, before the forward runs again and after it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...parts.plan import SaveRule
from .. import private
from ..capture.flat import by_parameter
from ..capture.trace_errors import functions_refused
from ..compiled.saved_results import contexts
from ..measure.as_before import as_before
from ..measure.caches import without_caches
from ..measure.recording import Recorded
from ..run.own_forward import SwitchedForward
from ..run.sample import copies, owned
from ..tensors import tree
from ..tensors.lock import LOCK
from ..trace import plain_forward


class AgainForward(SwitchedForward):
    """The forward of a part that runs once more in backward, from its inputs and with the same random state.

    rule : results that are saved besides, and not made again; None: none. plain : the module's own forward. keeps_caches : the
        step makes key-value caches, as `config.use_cache` says.
    """

    def __init__(self, model: nn.Module, rule: SaveRule | None = None, keeps_caches: bool = False):
        super().__init__(model)
        self.rule, self.keeps_caches = rule, keeps_caches
        self._training = model.training

    def _pickled(self) -> Any:
        return self.rule, self.keeps_caches, self._training, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        self.rule, self.keeps_caches, self._training, self.is_off = pickled

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
        again = _Rerun(model, self.plain, self.keeps_caches)
        run = functools.partial(checkpoint, again, *args, use_reentrant=False, **how, **kwargs)
        return run() if self.copies is None else self.copies.run(model, (args, kwargs), run)


class _Rerun:
    """A forward that may run again: each time it finds the plain attributes of the first time, and later runs change none."""

    def __init__(self, model: nn.Module, plain: Callable[..., Any], keeps_caches: bool):
        self._model, self._plain, self._keeps_caches = model, plain, keeps_caches
        self._before = _plain_attributes(model)
        self._ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with without_caches(self._model, self._keeps_caches):
            return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not self._ran:
            self._ran = True
            return self._plain(*args, **kwargs)
        now = _plain_attributes(self._model)
        _put_back(self._before)
        try:
            # torch.utils.checkpoint ends it by an exception where all is recomputed
            return self._plain(*args, **kwargs)
        finally:
            _put_back(now)


def _plain_attributes(model: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The attributes of all modules that are plain values."""
    return [(m, {k: x for k, x in m.__dict__.items() if isinstance(x, tree.PLAIN)}) for m in model.modules()]


def _put_back(noted: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    for m, values in noted:
        for k in [k for k, x in m.__dict__.items() if isinstance(x, tree.PLAIN) and k not in values]:
            del m.__dict__[k]
        m.__dict__.update(values)


def only_computes(module: nn.Module, given: Recorded) -> bool:
    """Whether a forward of the module changes nothing but what it returns, and plain attributes, so that it may run twice."""
    tensors = copies(given.call.tensors, owned(module))
    args, kwargs = given.call.form.arguments(tree.unflatten(tensors, given.call.spec))
    with given.surroundings(module), as_before(module, by_parameter(args, kwargs)) as before:
        seen = [*tensors, *module.buffers(), *module.parameters()]
        versions = [t._version for t in seen]
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        with torch.no_grad(), private.scripted_refused(every=True), functions_refused():
            plain_forward(module)(*args, **kwargs)
        plain = {
            f"{path}.{k}".lstrip(".") for path, m in module.named_modules() for k, x in m.__dict__.items()
            if isinstance(x, tree.PLAIN)
        }  # fmt: skip
        drew = python != random.getstate() or str(numpy) != str(np.random.get_state(legacy=False))
        wrote = versions != [t._version for t in seen] or any(map(before.tensors.differs, seen))
    effects, changes = before.effects, before.changes
    changed = changes.assigned or changes.collected or set(changes.other) - plain
    return not (changed or effects.changed or effects.dropped or effects.drawn or drew or wrote)
