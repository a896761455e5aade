"""Whether later calls compute what the captured one does, whatever forward counts or collects meanwhile."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import generators
from .attributes import Attributes
from .counted import Asked, counted, lengths_counted
from .flat import FlatForward
from .private import FakeTensorMode, TorchDispatchMode, is_fake, pytree
from .restorable import Restorable, restorable, same_entry
from .side_effects import SideEffects
from .tensor_memory import written_by
from .trace_errors import depends_on_itself

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaterSettings:
    """calls_most : calls that are looked ahead; a queue as long as that comes round. questions_most : about numbers that
    forward changes, whose answers are turned round. Both are guesses."""

    calls_most: int = 16
    questions_most: int = 16


SETTINGS = LaterSettings()


def check_later_calls(
    flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode, effects: SideEffects
) -> None:
    """Run forward on tensors without data, call after call, and compare the ops that its results depend on.

    Raises
    ------
    TraceError : a later call runs other ops; the message names what it depends on, and the line.
    """
    moved = effects.changed_now()
    names = sorted({*flat.changes.other, *flat.changes.collected})
    if not names and not moved or any(isinstance(w.x, generators.OTHERS) for _, w in moved):
        return
    saved, state = dict(flat.__dict__), Attributes(flat.model)
    flat.goes_on = True
    try:
        # What forward prints now and then is printed by no call that the user made.
        with contextlib.redirect_stdout(io.StringIO()):
            _compare(flat, [mode.from_tensor(t) for t in tensors], mode, [*_own(flat.model, names), *moved])
    finally:
        state.restore()
        flat.__dict__.update(saved)


def _compare(
    flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode, held: list[tuple[str, Restorable]]
) -> None:
    asked = Asked()

    def ops() -> Any:
        lengths = {id(w.x): name for name, w in held if _has_grown(w)}
        for name, w in held:
            w.write(_counted(w, name, asked))
        try:
            with lengths_counted(lengths, asked):
                return _ops(flat, tensors, mode)
        except Exception as e:
            log.debug("a later call of %s cannot be looked at: %r", type(flat.model).__name__, e)
            return None

    first = ops()
    if first is None:
        return
    held = [(name, w) for name, w in held if not w.same()]
    for _ in range(min(SETTINGS.calls_most, 1 + max((_length(w) for _, w in held), default=0))):
        if (later := ops()) != first:
            if later is not None:
                raise depends_on_itself(flat.model, [k for name, w in held for k in _names(name, w)])
            return
    for question, (name, line) in list(asked.lines.items())[: SETTINGS.questions_most]:
        asked.turn = question
        if ops() not in (None, first):
            raise depends_on_itself(flat.model, [name], line)


def _own(model: nn.Module, names: list[str]) -> Iterator[tuple[str, Restorable]]:
    """(path, or name) and content of the modules, and of the lists, dicts and sets in attributes, that have these names."""
    modules = dict(model.named_modules())
    for path in dict.fromkeys(k.rpartition(".")[0] for k in names):
        if path in modules and (made := restorable(vars(modules[path]))) is not None:
            yield f"{path}." if path else "", made
    for k in names:
        path, _, leaf = k.rpartition(".")
        x = vars(modules[path]).get(leaf) if path in modules else None
        if isinstance(x, list | dict | set) and (made := restorable(x)) is not None:
            yield k, made


def _names(name: str, w: Restorable) -> list[str]:
    """Names of what has changed in it."""
    if name and not name.endswith("."):
        return [name]
    now = w.read()
    return [f"{name}{k}" for k in now if not same_entry(now[k], w.before.get(k))]


def _counted(w: Restorable, name: str, asked: Asked) -> Any:
    """Its content, with numbers that note their questions where it has changed."""
    now, was = w.read(), w.before
    if isinstance(now, dict):
        path = name if not name or name.endswith(".") else None
        new = {
            k: x if same_entry(x, was.get(k)) else counted(x, name if path is None else f"{path}{k}", asked)
            for k, x in now.items()
        }
        return new
    if isinstance(now, list):
        longer = len(now) != len(was)
        return [counted(x, name, asked) if longer or not same_entry(x, was[i]) else x for i, x in enumerate(now)]
    return now if isinstance(now, set) else counted(now, name, asked)


def _has_grown(w: Restorable) -> bool:
    now = w.read()
    return isinstance(now, dict | list | set) and len(now) != len(w.before)


def _length(w: Restorable) -> int:
    """After how many calls a queue comes round; a container that grows is none."""
    now = w.read()
    if isinstance(now, dict):
        rows = [(x, w.before.get(k)) for k, x in now.items() if isinstance(x, tuple | list)]
        return max([1, *(len(x) for x, y in rows if isinstance(y, tuple | list) and x is not y and len(x) == len(y))])
    return len(now) if isinstance(now, list) and len(now) == len(w.before) else 1


def _ops(flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode) -> list[Any]:
    """The ops of one call, on which its results and what it writes depend, with their constants."""
    own = {f"model.{k}": mode.from_tensor(t) for k, t in [*flat.model.named_parameters(), *flat.model.named_buffers()]}
    with mode, _Ops() as ran:
        results = torch.func.functional_call(flat, own, tuple(tensors))
    live = {s for t in [*own.values(), *results] if (s := _memory(t)) is not None}
    found: list[Any] = [flat.questions]
    for op, given, made in reversed(ran.ops):
        if not live.isdisjoint(map(_memory, made)):
            live.update(s for t in given if (s := _memory(t)) is not None)
            found.append(op)
    return found


def _memory(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata if t.layout is torch.strided else None


class _Ops(TorchDispatchMode):
    """Notes ops with their constants; tensors that no op made, from lists and globals, are constants too."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[
            tuple[Any, list[torch.Tensor], list[torch.Tensor]]
        ] = []  # the tensors keep their memory's address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs or {}))
        given = [t for t in leaves if isinstance(t, torch.Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default:  # a call that prints: any number serves
            return (
                torch.ones((), dtype=given[0].dtype, device="cpu").numpy().item()
                if given[0].dtype != torch.bool
                else True
            )
        out = func(*args, **(kwargs or {}))
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        told = [("%" if is_fake(x) else id(x)) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
        self.ops.append(((str(func), *told), given, [*made, *written_by(func, args, kwargs or {})]))
        return out
