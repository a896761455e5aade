"""An optimizer's state that the host holds: `step()` brings it to the device part by part, and takes it back.

A part is the state of some parameters, in one block on either side, so that one copy moves it. While the optimizer steps one
part, the next one comes and the last one leaves. The bits are those of a plain step: a copy is exact, and an optimizer is
stepped part by part only if a trial shows that this changes none of its numbers.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ..costs.optimizer_trial import steps_each_alone, without_hooks
from ..costs.optimizers import innermost, state_of_each
from . import away
from .state_part import Part, bytes_in_block, is_plain

PART_BYTES = (
    2**27
)  # of state that come at once; a guess: 2.7 ms at 50 GB/s, beside the Python of a step of about 0.5 ms
STAYING_SHARE = 0.01  # of the state; where more cannot be moved, a warning says so


class StateOnHost:
    """Moves the state of one optimizer for as long as it steps. Made by `hold_on_host`.

    bytes : of the state. most_bytes : of the parts that are on the device at once.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer, self._off, self._stepping = optimizer, False, False
        self._alone = steps_each_alone(optimizer)
        sizes = list(state_of_each(optimizer))
        self.bytes = sum(size for _, size in sizes)
        if self.bytes > (room := away.host_room()):
            raise RekindleError(
                f"the state of {type(optimizer).__name__} takes {format_bytes(self.bytes)}, and the host has "
                f"{format_bytes(max(0, room))} left for it; take an optimizer with less state, or leave it on the device"
            )
        self._parts: list[Part] = []
        self._add(sizes)
        self.send_all()
        blocks = [part.block.nbytes for part in self._parts]
        self.most_bytes = max(map(sum, zip(blocks, [*blocks[1:], 0], strict=True)), default=0)
        self._previous: Callable[..., Any] = optimizer.step
        self._own = optimizer.__dict__.get("step")  # a wrapper's, such as a learning-rate scheduler's
        hooked = Optimizer.profile_hook_step(self._in_parts)

        @functools.wraps(self._previous)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._off:
                return self._previous(*args, **kwargs)
            self._stepping = True
            try:
                return hooked(optimizer, *args, **kwargs)
            finally:
                self._stepping = False

        self._step = MethodType(step, optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]
        self._handles = [
            optimizer.register_step_pre_hook(self._check_step),
            optimizer.register_load_state_dict_post_hook(lambda _: self.send_all()),
        ]

    @property
    def words(self) -> str:
        """Where the state is, and what a step takes for it."""
        name = type(self.optimizer).__name__
        if not self.bytes:
            return f'offload="optimizer": {name} keeps no state, so nothing is copied'
        link = link_of(self._parts[0].device, None, False)
        out, back = self.bytes / link.out_bytes_per_s, self.bytes / link.in_bytes_per_s
        seconds = max(out, back) if self._alone and link.both_at_once else out + back
        whole = "" if self._alone else ", which is all of it, as parameters do not step by themselves"
        return (
            f"the host holds the state of {name} ({format_bytes(self.bytes)}); each step() copies it "
            f"in about {format_seconds(seconds)}, with at most {format_bytes(self.most_bytes)} on the device{whole}"
        )

    def send_all(self) -> None:
        """Send to the host what is on the device."""
        for part in self._parts:
            part.arrived(part.fetch())  # what has stayed on the host: the part may be laid out anew
            part.gone(part.send())
        self._settle(self._parts)

    def end(self) -> None:
        """Bring the state back to the device, and leave the optimizer as it was."""
        for part in self._parts:
            part.bring_back()
        self._off = True
        for handle in self._handles:
            handle.remove()
        if self.optimizer.__dict__.get("step") is self._step:  # else something wraps it, and it passes the step on
            del self.optimizer.__dict__["step"]
            if self._own is not None:
                self.optimizer.step = self._own  # type: ignore[method-assign]

    # -- a step --------------------------------------------------------------------------------------------------------
    def _check_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepping:
            raise RekindleError(
                f"{type(optimizer).__name__} steps by another function than its `step`, so that its state, which the host "
                "holds, cannot come to the device; call rekindle.checkpoint after whatever wraps or replaces its step"
            )

    def _in_parts(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, part by part. Hooks run around all parts."""
        capturing = self._parts[0].device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if capturing or torch.compiler.is_compiling():
            raise RekindleError(
                "a step() whose state the host holds is neither compiled nor captured as a CUDA graph; compile the model alone"
            )
        args, kwargs, loss = self._evaluated(args, kwargs)
        self._add_new()
        grads = {p: p.grad for part in self._parts for p in part.params if p.grad is not None}
        parts = [part for part in self._parts if any(p in grads for p in part.params)]
        step = functools.partial(self._previous, *args, **kwargs)
        with without_hooks(optimizer):
            result = self._run(parts, grads, step) if parts else step()
        return result if loss is None else loss[0]

    def _run(self, parts: list[Part], grads: dict[nn.Parameter, torch.Tensor], step: Callable[[], Any]) -> Any:
        """Step each part while the next one comes and the one before it leaves. Other parts have no gradients meanwhile."""
        coming, leaving, left_to_step = parts[0].fetch(), None, 0
        hidden = dict(grads) if len(parts) > 1 else {}
        try:
            for p in hidden:
                p.grad = None
            for i, part in enumerate(parts):
                part.arrived(coming)
                coming = None
                if leaving is not None:
                    parts[i - 1].gone(leaving)
                    leaving = None
                coming = parts[i + 1].fetch() if i + 1 < len(parts) else None
                mine = [p for p in part.params if p in hidden]
                for p in mine:
                    p.grad = hidden[p]
                result = step()
                left_to_step = i + 1
                for p in mine:
                    hidden[p], p.grad = p.grad, None  # type: ignore[assignment]
                leaving = part.send()
            if leaving is not None:
                parts[-1].gone(leaving)
            self._settle(parts)
            left_to_step = 0
            return result
        finally:
            if coming is not None:
                coming.there.synchronize()
            for p in (p for part in parts[left_to_step:] for p in part.params if p in hidden):
                p.grad = hidden[p]  # after an error, what has stepped has no gradient any more: a second step() goes on

    def _evaluated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The arguments of a step, with the closure among them evaluated, and [its loss]; None: there is no closure."""
        closure = args[0] if args else kwargs.get("closure")
        if not callable(closure):
            return args, kwargs, None
        if not type(self.optimizer).__module__.startswith("torch.optim"):  # PyTorch's own evaluate it first
            raise RekindleError(
                f"{type(self.optimizer).__name__}.step(closure) may run the model while the state is on the device; "
                "run forward and backward first, and call step() without a closure"
            )
        with torch.enable_grad():
            loss = [closure()]
        once = lambda: loss[0]  # noqa: E731
        return ((once, *args[1:]), kwargs, loss) if args else (args, kwargs | {"closure": once}, loss)

    def _add(self, sizes: Iterable[tuple[nn.Parameter, int]]) -> None:
        """Have parts for these parameters. sizes : (parameter, bytes of its state)."""
        found: list[tuple[list[nn.Parameter], int]] = []
        for p, size in ((p, bytes_in_block(size)) for p, size in sizes):
            joins = bool(found) and found[-1][0][-1].device == p.device
            if joins and (not self._alone or found[-1][1] + size <= PART_BYTES):
                found[-1] = ([*found[-1][0], p], found[-1][1] + size)
            else:
                found.append(([p], size))
        self._parts += [Part(self.optimizer, params, size) for params, size in found]
        if len(self._parts) > 1 and not self._alone:
            raise RekindleError(
                f'offload="optimizer": {type(self.optimizer).__name__} steps all its parameters together, so they must be on '
                "one device, and all there when rekindle.checkpoint is called"
            )

    def _add_new(self) -> None:
        """Have parts for parameters that the optimizer was given later."""
        known = {id(p) for part in self._parts for p in part.params}
        if any(id(p) not in known for g in self.optimizer.param_groups for p in g["params"]):
            self._add((p, size) for p, size in state_of_each(self.optimizer) if id(p) not in known)

    def _settle(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.settle()
        staying = sum(part.staying for part in self._parts)
        if staying > STAYING_SHARE * self.bytes:
            notices.warn(
                f"{format_bytes(staying)} of the state of {type(self.optimizer).__name__} stay on the device, beyond what a "
                "budget counts: they are no plain tensors, or share memory with others"
            )


_held: weakref.WeakKeyDictionary[nn.Module, StateOnHost] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def held_on_host(model: nn.Module, optimizer: Any) -> Iterator[StateOnHost]:
    """The host holds the state of the optimizer that trains the model: inside, and from then on if nothing fails there.

    Raises
    ------
    UsageError : this optimizer's state cannot be moved. RekindleError : the host has no room for it.
    """
    before, inner = _held.get(model), _movable_optimizer(optimizer)
    held = before if before is not None and before.optimizer is inner else StateOnHost(inner)
    try:
        yield held
    except BaseException:
        if held is not before:
            held.end()
        raise
    if held is not before:
        bring_back(model)
        _held[model] = held


def bring_back(model: nn.Module) -> None:
    """The state of the optimizer that trains the model is on the device again, if the host held it."""
    held = _held.pop(model, None)
    if held is not None:
        held.end()


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
        if not is_plain(p):
            raise UsageError(
                f'offload="optimizer" moves the state of plain parameters that have numbers, and {name} has others, of type '
                f"{type(p).__name__}; the state of sharded ones is moved by FSDP's own CPUOffloadPolicy"
            )
    return inner
