"""An optimizer's state that the host holds: `step()` brings it to the device part by part, and takes it back.

While the optimizer steps one part, the next one comes and the last one leaves. The bits are those of a plain step: a copy is
exact, and the parameters of PyTorch's own optimizers step by themselves. All of another optimizer's state comes at once.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import RekindleError, UsageError
from ...estimates.estimate import format_seconds
from ...saying import notices
from ...saying.sizes import format_bytes
from ..costs.link import link_of
from ..costs.resident import innermost, state_of_each, tensors_of_state
from ..private import step_is_its_own, step_without_hooks
from . import away
from .state_part import Part, bytes_in_block, is_memory

# Bytes of a part. A guess: 2.7 ms at 50 GB/s.
PART_BYTES = 2**27
STAYING_SHARE = 0.01  # of the state; if more cannot be moved, a warning says so
FROZEN_TIMES = 2  # bytes of state per byte of a parameter that may be trained later; a guess


class StateOnHost:
    """Moves the state of one optimizer for as long as it steps. Made by `held_on_host`.

    bytes : of the state. most_bytes : of it that are on the device at once, at most.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer, self._stepping, self._warned = optimizer, False, False
        self._own = step_is_its_own(optimizer)
        self._parts: list[Part] = []
        self._add_new()
        self.bytes = sum(size for _, size in state_of_each(optimizer))
        at_once = sum(sorted(part.block.nbytes for part in self._parts)[-2:])
        self.most_bytes = at_once if self._own else 2 * at_once  # another optimizer may make its state anew
        self._previous: Callable[..., Any] = optimizer.step
        self._wrapper = vars(optimizer).get("step")  # such as a learning-rate scheduler's
        try:
            self._send_all(self._parts)
        except BaseException:
            self._bring_all()
            raise
        run = Optimizer.profile_hook_step(self._in_parts) if self._own else self._in_parts

        @functools.wraps(self._previous)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self._handles:
                return self._previous(*args, **kwargs)
            self._stepping = True
            try:
                return run(optimizer, *args, **kwargs)
            finally:
                self._stepping = False

        self._step = MethodType(step, optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]
        self._handles = [
            optimizer.register_step_pre_hook(self._check_function),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    @property
    def words(self) -> str:
        """Where the state is, and how long a step copies it."""
        name = type(self.optimizer).__name__
        if not self.bytes:
            return f'offload="optimizer": {name} keeps no state, so nothing is copied'
        link = link_of(self._parts[0].device, None, False)
        out, back = self.bytes / link.out_bytes_per_s, self.bytes / link.in_bytes_per_s
        seconds = max(out, back) if self._own and link.both_at_once else out + back
        at_once = f"at most {format_bytes(self.most_bytes)}" if self._own else "all of it"
        return (
            f"the host holds the state of {name} ({format_bytes(self.bytes)}); each step() copies it in about "
            f"{format_seconds(seconds)}, with {at_once} on the device at once"
        )

    def end(self) -> None:
        """Bring the state back to the device, and leave the optimizer as it was."""
        self._bring_all()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if vars(self.optimizer).get("step") is self._step:  # else something wraps it, and it passes the step on
            del self.optimizer.step
            if self._wrapper is not None:
                self.optimizer.step = self._wrapper  # type: ignore[method-assign]

    # -- a step --------------------------------------------------------------------------------------------------------
    def _check_function(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepping:
            raise RekindleError(
                f"{type(optimizer).__name__} steps by another function than its `step`, so that its state, which the host "
                "holds, cannot come to the device; call rekindle.checkpoint after whatever wraps or replaces its step"
            )

    def _in_parts(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, part by part."""
        cuda = any(part.device.type == "cuda" for part in self._parts)
        if torch.compiler.is_compiling() or cuda and torch.cuda.is_current_stream_capturing():
            raise RekindleError(
                "a step() whose state the host holds is neither compiled nor captured as a CUDA graph; compile the model alone"
            )
        self._add_new()
        closure = args[0] if args else kwargs.get("closure")
        if not self._own and callable(closure):
            raise RekindleError(
                f"{type(optimizer).__name__}.step(closure) may run the model while the state is on the device; run forward and "
                "backward first, and call step() without a closure"
            )
        if not self._own:
            return self._run(functools.partial(self._previous, *args, **kwargs))
        loss = None
        if closure is not None:  # PyTorch's own evaluate it first
            with torch.enable_grad():
                loss = closure()
        rest = {k: x for k, x in kwargs.items() if k != "closure"}
        self._run(functools.partial(step_without_hooks, optimizer, None, *args[1:], **rest))
        return loss

    def _run(self, step: Callable[[], Any]) -> Any:
        """Step each part while the next one comes and the one before it leaves. Other parts have no gradients meanwhile."""
        optimizer, groups = self.optimizer, self.optimizer.param_groups
        for part in self._parts:
            part.settle()
        self._send_all([part for part in self._parts if part.is_there])  # a step that failed has left them
        grads = {p: p.grad for part in self._parts for p in part.params if p.grad is not None}
        parts = [part for part in self._parts if not self._own or any(p in grads for p in part.params)]
        if not parts:
            return step()
        stepped = 0
        try:
            parts[0].fetch()
            for p in grads if len(parts) > 1 else ():
                p.grad = None
            for i, part in enumerate(parts):
                part.arrived()
                if i:
                    parts[i - 1].gone()
                if i + 1 < len(parts):
                    parts[i + 1].fetch()
                mine = {p for p in part.params if p in grads}
                for p in mine:
                    p.grad = grads[p]
                if len(parts) > 1:  # PyTorch's own walk through all groups
                    optimizer.param_groups = [g for g in groups if not mine.isdisjoint(g["params"])]
                result = step()
                stepped = i + 1
                try:
                    part.send()  # before the gradients are hidden, since a gradient may be in the state too
                finally:
                    for p in mine:
                        grads[p], p.grad = p.grad, None  # type: ignore[assignment]
            parts[-1].gone()
            stepped = 0
        finally:
            optimizer.param_groups = groups
            # After an error, what has stepped has no gradient: a second step() goes on.
            for i, part in enumerate(parts):
                for p in (p for p in part.params if p in grads):
                    p.grad = grads[p] if i >= stepped else None
            for part in parts:  # anybody may read the state on the host from now on
                part.settle()
        self._say_what_stays()
        return result

    # -- parts ---------------------------------------------------------------------------------------------------------
    def _add_new(self) -> None:
        """Have parts for the parameters that the optimizer has now: all of them at first, and those that it is given later."""
        params = {p for g in self.optimizer.param_groups for p in g["params"]}
        self._parts = [part for part in self._parts if not params.isdisjoint(part.params)]
        known = {p for part in self._parts for p in part.params}
        if not params <= known:
            self._add((p, size) for p, size in state_of_each(self.optimizer) if p not in known)

    def _add(self, sizes: Iterable[tuple[nn.Parameter, int]]) -> None:
        """Have parts for these parameters. sizes : (parameter, bytes of its state)."""
        # Of each part: parameters, bytes now, bytes once all of them are trained.
        found: list[tuple[list[nn.Parameter], int, int]] = []
        for p, size in ((p, bytes_in_block(size)) for p, size in sizes):
            later = size or (0 if p.requires_grad else FROZEN_TIMES * p.nbytes)
            params, now, then = found[-1] if found else ([], 0, 0)
            if params and params[-1].device == p.device and (not self._own or then + later <= PART_BYTES):
                found[-1] = ([*params, p], now + size, then + later)
            else:
                found.append(([p], size, later))
        name, needed, room = type(self.optimizer).__name__, sum(now for _, now, _ in found), away.host_room()
        if needed > room:
            raise RekindleError(
                f"the state of {name} takes {format_bytes(needed)}, and the host has {format_bytes(max(0, room))} left for it; "
                "take an optimizer with less state, or leave it on the device"
            )
        if len(self._parts) + len(found) > 1 and not self._own:
            raise RekindleError(
                f'offload="optimizer": all of the state of {name} comes to the device at once, so its parameters must be on '
                "one device, and all there when rekindle.checkpoint is called"
            )
        self._parts += [Part(self.optimizer, params, now, self._own) for params, now, _ in found]

    def _send_all(self, parts: Iterable[Part]) -> None:
        for part in parts:
            part.fetch()  # an interrupted step may have left some of it there, and some here
            part.arrived()
            part.send()
            part.gone()
            part.settle()

    def _bring_all(self) -> None:
        for part in self._parts:
            part.bring_back()
        self._parts = []

    def _loaded(self, optimizer: Optimizer) -> None:
        """Send a loaded state to the host, in new blocks: the old ones may be those of a `state_dict()` that somebody keeps."""
        self._parts = []
        self._add_new()
        self._send_all(self._parts)
        self._say_what_stays()

    def _say_what_stays(self) -> None:
        """Warn once if much of the state stays on the device."""
        if self._warned:
            return
        away = {t.untyped_storage()._cdata for part in self._parts for t in part.on_host()}
        devices = {part.device for part in self._parts}
        state = [t for t in tensors_of_state(self.optimizer.state.values()) if t.ndim and t.device in devices]
        storages = {s._cdata: s.nbytes() for t in state if is_memory(t) for s in (t.untyped_storage(),)}
        staying = sum(t.nbytes for t in state if not is_memory(t))
        staying += sum(size for key, size in storages.items() if key not in away)
        if staying > STAYING_SHARE * self.bytes:
            self._warned = True
            notices.warn(
                f"{format_bytes(staying)} of the state of {type(self.optimizer).__name__} stay on the device, beyond what a "
                "budget counts: they are sparse, of a subclass, in a list, part of a graph, or share memory with others"
            )


_held: weakref.WeakKeyDictionary[nn.Module, weakref.ref[StateOnHost]] = weakref.WeakKeyDictionary()


def _held_for(model: nn.Module) -> StateOnHost | None:
    """The mover of the state of the optimizer that trains the model; None: there is none, or nobody uses that optimizer."""
    return _held[model]() if model in _held else None


@contextlib.contextmanager
def held_on_host(model: nn.Module, optimizer: Any) -> Iterator[StateOnHost]:
    """The host holds the state of the optimizer that trains the model: inside, and from then on if nothing fails there.

    Raises
    ------
    UsageError : this optimizer's state cannot be moved. RekindleError : the host has no room for it.
    """
    inner = _movable_optimizer(optimizer)
    known = [held for m in _held if (held := _held_for(m)) is not None and held.optimizer is inner]
    held = known[0] if known else StateOnHost(inner)
    try:
        yield held
    except BaseException:
        if not known:
            held.end()
        raise
    if _held_for(model) is not held:
        bring_back(model)
        _held[model] = weakref.ref(held)


def bring_back(model: nn.Module) -> None:
    """The state of the optimizer that trains the model is on the device again, unless it trains another model too."""
    held = _held_for(model)
    if held is not None and all(_held_for(m) is not held for m in _held if m is not model):
        held.end()
    _held.pop(model, None)


def _movable_optimizer(given: Any) -> Optimizer:
    inner = innermost(given)
    if inner is None:
        raise UsageError(
            'offload="optimizer" moves the state of an optimizer while it steps, so it needs the optimizer itself: '
            "give it as optimizer="
        )
    name = type(inner).__name__
    if isinstance(inner, torch.optim.LBFGS):
        raise UsageError(f'offload="optimizer": {name} runs the model while it steps, with its state on the device')
    for p in (p for g in inner.param_groups for p in g["params"]):
        if p.numel() and not is_memory(p):
            raise UsageError(
                f'offload="optimizer" moves the state of plain tensors, and {name} trains a {type(p).__name__} on {p.device}; '
                "sharded parameters have FSDP's CPUOffloadPolicy"
            )
    return inner
