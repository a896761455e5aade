"""Records with which arguments a step calls each submodule, by one plain forward of the whole model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...errors import RekindleError
from ..capture import module_call as calls
from ..capture.lock import LOCK
from ..capture.module_call import Key, ModuleCall
from ..run.as_before import as_before
from ..run.measured_step import Subject
from ..run.sample import copies, owned
from ..trace import module_kinds, plain_forward

DEVICES = ("cpu", "cuda")  # kinds for which autocast may be on


@dataclass(frozen=True)
class Recorded:
    """The arguments of one call of a submodule, copied, and the autocast under which it was called.

    key : of the call, as in `ModuleCall.key`. casts : (kind of device, dtype) for each kind under autocast.
    """

    call: ModuleCall
    key: Key
    casts: tuple[tuple[str, torch.dtype], ...]

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Inside, autocast is as it was during the call."""
        with contextlib.ExitStack() as stack:
            for kind in DEVICES if self.casts else ():
                dtype = dict(self.casts).get(kind)
                if dtype is not None or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
            yield


@dataclass
class Calls:
    """The calls of one submodule in the step.

    keys : of each call, in order. samples : key -> the arguments of one such call of this module or of an equal one.
    """

    keys: list[Key] = field(default_factory=list)
    samples: dict[Key, Recorded] = field(default_factory=dict)


def signature(module: nn.Module) -> Any:
    """Equal for modules of the same classes, shapes and modes."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return (
        type(module),
        module_kinds(module),
        tuple((k, tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for k, t in named),
        tuple(m.training for m in module.modules()),
    )


def record(s: Subject) -> dict[str, Calls]:
    """path of a submodule -> its calls in one forward of the model on its sample, in order of first calls.

    The forward runs with gradients, as a step does, but nothing is saved for backward. Afterwards everything is as it was.
    """
    try:
        return _record(s, saving=False)
    except _Asked:  # forward itself takes gradients
        return _record(s, saving=True)


class _Asked(RekindleError):
    """Forward asked for a tensor that was not saved."""


def _record(s: Subject, saving: bool) -> dict[str, Calls]:
    found: dict[str, Calls] = {}
    known: dict[Any, Recorded] = {}  # (signature, key) -> the arguments of one such call
    args, kwargs, _ = s.sample.fresh()
    own = owned(s.model)
    modules = [(name, m) for name, m in s.model.named_modules() if name and may_be_part(m)]

    def recorder(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        kind = signature(module)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not LOCK.mine:
                with contextlib.suppress(Exception):  # arguments that cannot be taken apart: the module is no part
                    _note(found.setdefault(name, Calls()), known, own, kind, calls.bind(forward, args, kwargs))
            return forward(*args, **kwargs)

        return recorded

    nothing = torch.autograd.graph.saved_tensors_hooks(lambda t: None, _not_saved)
    with (
        as_before(s.model, s.written, given=s.sample.objects, fake=s.fake is not None),
        contextlib.ExitStack() as stack,
    ):
        for name, m in modules:
            stack.enter_context(_instead(m, recorder(name, m, plain_forward(m))))
        if not saving:
            stack.enter_context(nothing)
        plain_forward(s.model)(*args, **kwargs)
    return found


def _note(calls_of: Calls, known: dict[Any, Recorded], own: set[Any], kind: Any, call: ModuleCall) -> None:
    if call.odd or call.used_up:
        return
    key = call.key
    if (kind, key) not in known:
        casts = tuple((k, torch.get_autocast_dtype(k)) for k in DEVICES if torch.is_autocast_enabled(k))
        with torch.no_grad():
            twins = copies([t.detach().requires_grad_(t.requires_grad) for t in call.tensors], own)
        known[kind, key] = Recorded(ModuleCall(twins, call.spec, call.form), key, casts)
    calls_of.keys.append(key)
    calls_of.samples[key] = known[kind, key]


def may_be_part(module: nn.Module) -> bool:
    """Whether a plan could save anything in the module: a single layer of torch.nn, but for recurrent ones, is one operator."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return True
    return bool(list(module.children())) or not type(module).__module__.startswith("torch.nn.")


@contextlib.contextmanager
def _instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, the module has this forward."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = before


def _not_saved(_: Any) -> Any:
    raise _Asked("a tensor that was not saved is asked for")
