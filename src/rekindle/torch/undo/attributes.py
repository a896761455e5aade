"""Attributes and buffers of modules, with the contents of their lists, dicts and sets: noted, compared, put back."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..private import script_attributes
from ..situation.callables import added_by_torch
from ..tensors.objects import content, refill, same_content, same_entry, values_of


def plain_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """(qualified name, module, attribute, tensor) of tensors that are neither parameters nor buffers."""
    for name, m in model.named_modules():
        for k, t in list(m.__dict__.items()):
            if isinstance(t, torch.Tensor) and k.isidentifier():
                yield f"{name}.{k}".lstrip("."), m, k, t


Kind = tuple[torch.Size, torch.dtype, torch.device]


def kind_of(t: torch.Tensor) -> Kind:
    """The properties of a tensor in an attribute on which the graph of a call depends."""
    return t.shape, t.dtype, t.device


def tensors_in_attributes(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers and plain tensor attributes, by name; a module with two names has its tensors under both."""
    return {
        f"{name}.{k}".lstrip("."): t
        for name, m in model.named_modules() for k, t in [*m._buffers.items(), *m.__dict__.items()]
        if isinstance(t, torch.Tensor)
    }  # fmt: skip


@contextlib.contextmanager
def tensors_as_buffers(model: nn.Module) -> Iterator[None]:
    """Inside, tensors that are plain attributes of modules are buffers, so that a captured graph takes them as inputs."""
    moved = [(m, k, t) for _, m, k, t in plain_tensors(model)]
    for m, k, t in moved:
        del m.__dict__[k]
        m._buffers[k] = t
    try:
        yield
    finally:
        for m, k, t in moved:
            m._buffers.pop(k, None)
            m.__dict__[k] = t


class Attributes:
    """The present attributes of all modules of a model, and the contents of lists, dicts and sets among them."""

    def __init__(self, model: nn.Module):
        every = list(model.named_modules())
        self._scripted = [(name, m, script_attributes(m)) for name, m in every if isinstance(m, torch.jit.ScriptModule)]
        kept = [(name, m) for name, m in every if not isinstance(m, torch.jit.ScriptModule)]
        self._kept = [(name, m, type(m), dict(m.__dict__)) for name, m in kept]
        self._held = [(x, content(x)) for *_, now in self._kept for x in now.values() if isinstance(x, _CONTAINERS)]

    def restore(self, only_tensors: bool = False) -> Changes:
        """Put all attributes back, and return the changes.

        only_tensors : values without tensors stay as they are now; new tensors in lists and dicts become zeros of their shape.
        """
        found = Changes()
        before: dict[int, Any] = {id(x): held for x, held in self._held}
        for _, m, *_ in self._kept:
            for table, added in added_by_torch(m):
                for k in added.keys() - before.get(id(table), added).keys():
                    before[id(table)][k] = added[k]
        changed = {id(x) for x, held in self._held if not same_content(content(x), held, operator.is_)}
        for name, m, kind, old in self._kept:
            if type(m) is not kind:
                m.__class__ = kind
            same = [*m.__dict__] == [*old] and all(map(operator.is_, m.__dict__.values(), old.values()))
            if same and changed.isdisjoint(map(id, old.values())):
                continue
            found.note(name, m, old, before)
            stay = {k: x for k, x in m.__dict__.items() if only_tensors and not isinstance(x, torch.Tensor)}
            for k, x in stay.items():
                if isinstance(x, list | dict) and id(x) not in before and _holds_tensors(x):  # a new one
                    refill(x, _with_zeros(content(x), before.get(id(old.get(k)), [])))
            for k in m.__dict__.keys() - old.keys() - stay.keys():
                del m.__dict__[k]
            m.__dict__.update(old | stay)
        for name, m, was in self._scripted:
            for k in [k for k, x in script_attributes(m).items() if not _equal(x, was[k])]:
                found.other.append(f"{name}.{k}")
                setattr(m, k, was[k])
        for x, held in self._held:
            if id(x) in changed and not (only_tensors and not _holds_tensors(x)):
                refill(x, _with_zeros(content(x), held) if only_tensors else held)
        return found


def _with_zeros(now: Any, held: Any) -> Any:
    """The present content of a container, with zeros instead of tensors that it did not hold before."""
    before = set(map(id, values_of(held)))

    def settled(x: Any) -> Any:
        new = isinstance(x, torch.Tensor) and id(x) not in before
        return torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape) if new else x

    if isinstance(now, dict):
        return {k: settled(x) for k, x in now.items()}
    return [settled(x) for x in now] if isinstance(now, list) else held


@dataclass
class Changes:
    """Attributes that changed, by qualified name.

    assigned : attribute or buffer -> the tensor that it was set to. collected : lists and dicts with other tensors.
    other : all other changed attributes. gone : those of them that held tensors and are deleted.
    """

    assigned: dict[str, torch.Tensor] = field(default_factory=dict)
    collected: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def note(self, name: str, m: nn.Module, old: dict[str, Any], before: dict[int, Any]) -> None:
        """Add what changed in a module. old : its attributes at first. before : contents at first, by id of the container."""
        now = m._buffers | m.__dict__  # forward may write past `nn.Module.__setattr__`: Python looks there first
        was = old | before[id(m._buffers)]
        for k in now.keys() | was.keys():
            x, y = now.get(k, _NONE), was.get(k, _NONE)
            y = before.get(id(y), y) if k != "_buffers" else y
            if x is y or _equal(x, y):
                continue
            path = f"{name}.{k}".lstrip(".")
            if x is _NONE and isinstance(y, torch.Tensor):
                self.gone.append(path)
            if isinstance(x, torch.Tensor):
                self.assigned[path] = x
            elif k not in _OF_TORCH:
                (self.collected if _holds_tensors(x) else self.other).append(path)


_CONTAINERS = (dict, list, set)
_OF_TORCH = {"_flat_weights", "_flat_weight_refs"}  # lists of their parameters in recurrent layers


def _holds_tensors(x: Any) -> bool:
    if isinstance(x, _CONTAINERS):
        return any(isinstance(t, torch.Tensor) for t in values_of(x))
    return isinstance(x, torch.Tensor)


_NONE: Any = object()


def _equal(x: Any, y: Any) -> bool:
    """Whether two attributes are the same object, equal plain values, or containers of the same objects."""
    if isinstance(x, _CONTAINERS) and isinstance(y, _CONTAINERS):
        return same_content(content(x), content(y), operator.is_)
    return same_entry(x, y)
