"""Takes nested arguments and results apart into tensors and a structure, and puts them together again.

Containers are tuples, named tuples, lists, mappings (also transformers' ModelOutput and BatchEncoding) and dataclasses; among
results also objects of plain classes that hold tensors. Any other object that is no tensor is part of the structure.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .fields import fields_of

PLAIN = (bool, int, float, complex, str, bytes, range, slice, frozenset, enum.Enum, type(None), torch.dtype, torch.device,
         torch.Size, torch.layout)  # fmt: skip


@dataclass(frozen=True)
class Leaf:
    """The place of the tensor with this index."""

    index: int


@dataclass(frozen=True)
class Opaque:
    """The place of an object of unknown type (a key-value cache, say), which the planned result leaves out."""

    kind: str


@dataclass(frozen=True)
class LeftOut:
    """The place of a result that the training loop does not read, where planned calls return None."""


@dataclass(frozen=True)
class Branch:
    """A container. like : an emptied example of it, or its type. keys : its keys or fields; None for a sequence."""

    like: Any
    keys: tuple[Any, ...] | None
    children: tuple[Any, ...]


def flatten(obj: Any, opaque_ok: bool = False) -> tuple[list[torch.Tensor], Any]:
    """(tensors, structure) of an object. A tensor object that occurs twice is one leaf.

    opaque_ok : an object is a result: one of a plain class is taken apart if it holds tensors, and any other of unknown type
        becomes `Opaque` instead of a constant.
    """
    tensors: list[torch.Tensor] = []
    spec = _walk(obj, tensors, {}, opaque_ok)
    return tensors, _strip(spec)


def tensors_in(obj: Any) -> list[torch.Tensor]:
    """The distinct tensors of a structure, which may hold objects of unknown types."""
    tensors: list[torch.Tensor] = []
    _walk(obj, tensors, {}, True)
    return tensors


def _walk(
    x: Any, tensors: list[torch.Tensor], seen: dict[int, int], opaque_ok: bool, around: tuple[int, ...] = ()
) -> Any:
    """around : ids of the objects of plain classes in which x stands."""
    # A plain function: a closure that calls itself is a reference cycle and would keep the tensors alive.
    if isinstance(x, torch.Tensor):
        if id(x) not in seen:
            seen[id(x)] = len(tensors)
            tensors.append(x)
        return Leaf(seen[id(x)])
    if isinstance(x, PLAIN):
        return x
    if isinstance(x, Mapping) and not _is_cache(x):
        return Branch(x, tuple(x), tuple([_walk(x[k], tensors, seen, opaque_ok, around) for k in x]))
    if isinstance(x, tuple | list):
        return Branch(x, None, tuple([_walk(v, tensors, seen, opaque_ok, around) for v in x]))
    if dataclasses.is_dataclass(x) and not isinstance(x, type) and not _is_cache(x):
        names = tuple(f.name for f in dataclasses.fields(x))
        return Branch(x, names, tuple([_walk(getattr(x, k), tensors, seen, opaque_ok, around) for k in names]))
    if opaque_ok and is_plain_object(x) and id(x) not in around:
        fields = fields_of(x)
        known = len(tensors)
        made = tuple([_walk(v, tensors, seen, True, (*around, id(x))) for v in fields.values()])
        if len(tensors) > known or any(isinstance(leaf, Leaf) for c in made for leaf in leaves(c)):
            return Branch(x, tuple(fields), made)
    return Opaque(type(x).__name__) if opaque_ok else x


def is_plain_object(x: Any) -> bool:
    """Whether the object is made of its fields alone: its class is written in Python, and changes nothing about how objects
    are made, copied and given attributes."""
    kind = type(x)
    if kind is types.SimpleNamespace:
        return True
    plain = all(getattr(kind, k, None) is getattr(object, k) for k in _OF_PLAIN_OBJECTS)
    special = isinstance(x, torch.nn.Module | Iterator | type) or any(
        k in vars(c) for c in kind.__mro__ for k in _OF_SPECIAL_OBJECTS
    )
    return plain and kind.__flags__ & _HEAP_TYPE != 0 and not special and not _is_cache(x)


_OF_PLAIN_OBJECTS = ("__new__", "__setattr__", "__getattribute__", "__reduce__", "__reduce_ex__")
_OF_SPECIAL_OBJECTS = ("__copy__", "__setstate__", "__getattr__", "__call__")
_HEAP_TYPE = 1 << 9  # of a class that a class statement has made


def _is_cache(x: Any) -> bool:
    # transformers' caches are mappings or dataclasses in some versions; they hold state, not results.
    return hasattr(x, "get_seq_length") or type(x).__name__.endswith("Cache")


def _strip(spec: Any) -> Any:
    """The structure with emptied examples, so that it keeps no tensors alive."""
    if not isinstance(spec, Branch):
        return spec
    children = tuple(_strip(c) for c in spec.children)
    like = spec.like
    if spec.keys is not None and not isinstance(like, dict):
        like = _emptied(like, spec.keys)
    elif type(like) in (dict, list, tuple):
        like = type(like)()
    elif isinstance(like, Mapping):
        like = _emptied(like, spec.keys or ())
    else:
        like = type(like)
    return Branch(like, spec.keys, children)


def _emptied(like: Any, keys: tuple[Any, ...]) -> Any:
    if not isinstance(like, Mapping) and not dataclasses.is_dataclass(like):
        return types.SimpleNamespace() if type(like) is types.SimpleNamespace else object.__new__(type(like))
    twin = copy.copy(like)
    if isinstance(twin, Mapping):
        for k in keys:
            _set_item(twin, k, None)
    if dataclasses.is_dataclass(twin):
        for f in dataclasses.fields(twin):
            object.__setattr__(twin, f.name, None)
    return twin


def _set_item(x: Any, key: Any, value: Any) -> None:
    # Bypasses the overrides of transformers' ModelOutput; the caller sets its fields.
    if isinstance(x, OrderedDict):
        OrderedDict.__setitem__(x, key, value)
    else:
        x[key] = value


def unflatten(tensors: list[Any], spec: Any) -> Any:
    """The object with these tensors in this structure, the inverse of `flatten`; `Opaque` and `LeftOut` places become
    None."""
    if isinstance(spec, Leaf):
        return tensors[spec.index]
    if isinstance(spec, Opaque | LeftOut):
        return None
    if not isinstance(spec, Branch):
        return spec
    children = [unflatten(tensors, c) for c in spec.children]
    like = spec.like
    if spec.keys is None:
        kind = like if isinstance(like, type) else type(like)
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if type(like) is dict:
        return dict(zip(spec.keys, children, strict=True))
    twin = copy.copy(like)
    for k, c, child in zip(spec.keys, children, spec.children, strict=True):
        if isinstance(twin, Mapping):
            _set_item(twin, k, c)
            left_out = isinstance(child, LeftOut) and dataclasses.is_dataclass(twin)
            if (isinstance(child, Opaque) or left_out) and isinstance(twin, OrderedDict):
                OrderedDict.__delitem__(twin, k)  # a ModelOutput has no keys for fields that are None
        if dataclasses.is_dataclass(twin) or not isinstance(twin, Mapping):
            object.__setattr__(twin, k, c)
    return twin


def leaves(spec: Any) -> Iterator[Any]:
    """The leaves of a structure: `Leaf` places, constants, `Opaque` and `LeftOut` places."""
    if isinstance(spec, Branch):
        for c in spec.children:
            yield from leaves(c)
    else:
        yield spec


def opaque_kinds(spec: Any) -> list[str]:
    """Type names of all `Opaque` objects in a structure."""
    if isinstance(spec, Opaque):
        return [spec.kind]
    if isinstance(spec, Branch):
        return [k for c in spec.children for k in opaque_kinds(c)]
    return []


def paths(spec: Any, at: str = "output") -> dict[int, str]:
    """A readable place for each tensor index, such as `output['logits']` or `output[0]`."""
    if isinstance(spec, Leaf):
        return {spec.index: at}
    out: dict[int, str] = {}
    if isinstance(spec, Branch):
        for k, c in zip(spec.keys if spec.keys is not None else range(len(spec.children)), spec.children, strict=True):
            for i, p in paths(c, f"{at}[{k!r}]").items():
                out.setdefault(i, p)
    return out
