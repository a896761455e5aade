"""Takes nested arguments and results apart into tensors and a structure, and puts them together again.

Containers are tuples, named tuples, lists, mappings (also transformers' ModelOutput and BatchEncoding), dataclasses, and
objects of plain classes that hold tensors. Any other object that is no tensor is part of the structure.

Forward may put its results into containers that its caller passed to it, and return these or not. In the structure of a result
such a container is a `Branch` with a `place`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections import OrderedDict, UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from .objects import PLAIN as PLAIN
from .objects import fields_of, refill, same_content, same_entry


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
class Kept:
    """An entry of a container of the caller's that forward left as it was."""


@dataclass(frozen=True, repr=False)
class Attribute:
    """The name of an attribute that a mapping has beside its entries."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Branch:
    """A container. like : an emptied example of it, or its type. keys : its keys and `Attribute`s, or fields; None for a
    sequence.

    place : of a container of the caller's, its path in the structure of the arguments.
    """

    like: Any
    keys: tuple[Any, ...] | None
    children: tuple[Any, ...]
    place: tuple[int, ...] | None = None


class Owned(NamedTuple):
    """A container of the caller's, its place, and its entries before forward ran."""

    container: Any
    place: tuple[int, ...]
    before: dict[Any, Any]

    @property
    def is_changed(self) -> bool:
        """Whether its entries are other objects now, or other plain values."""
        return not same_content(held_in(self.container), self.before)


def flatten(
    obj: Any,
    opaque_ok: bool = False,
    owned: Mapping[int, Owned] | None = None,
    known: Sequence[torch.Tensor] = (),
    left_out: Collection[int] = (),
) -> tuple[list[torch.Tensor], Any]:
    """(tensors, structure) of an object. A tensor object that occurs twice is one leaf.

    opaque_ok : an object of unknown type becomes `Opaque` instead of a constant.
    owned : the caller's own containers, by id. known : tensors that come first. left_out : ids of tensors at whose places
        `LeftOut` stands.
    """
    tensors = list(known)
    seen = dict.fromkeys(left_out, -1) | {id(t): i for i, t in enumerate(tensors)}
    spec = _walk(obj, tensors, seen, opaque_ok, (), owned or {})
    return tensors, _strip(spec)


def tensors_in(obj: Any) -> list[torch.Tensor]:
    """The distinct tensors of a structure, which may hold objects of unknown types."""
    tensors: list[torch.Tensor] = []
    _walk(obj, tensors, {}, True, (), {})
    return tensors


def _walk(
    x: Any,
    tensors: list[torch.Tensor],
    seen: dict[int, int],
    opaque_ok: bool,
    around: tuple[int, ...],
    owned: Mapping[int, Owned],
) -> Any:
    """around : ids of the objects of plain classes in which x stands."""
    # A plain function: a closure that calls itself is a reference cycle and would keep the tensors alive.

    def walk(y: Any) -> Any:
        return _walk(y, tensors, seen, opaque_ok, around, owned)

    def inside(y: Any) -> Any:
        return _walk(y, tensors, seen, opaque_ok, (*around, id(x)), owned)

    if isinstance(x, torch.Tensor):
        if id(x) not in seen:
            seen[id(x)] = len(tensors)
            tensors.append(x)
        return Leaf(seen[id(x)]) if seen[id(x)] >= 0 else LeftOut()
    if isinstance(x, PLAIN):
        return x
    if mine := owned.get(id(x)):
        now, was = held_in(x), mine.before
        made = tuple(
            Kept() if k in was and same_entry(v, was[k]) and id(v) not in owned else walk(v) for k, v in now.items()
        )
        return Branch(x, None if isinstance(x, list) else tuple(now), made, mine.place)
    if isinstance(x, Mapping) and not _is_cache(x):
        return _with_more(Branch(x, tuple(x), tuple([walk(x[k]) for k in x])), None if id(x) in around else inside)
    if isinstance(x, tuple | list):
        return Branch(x, None, tuple([walk(v) for v in x]))
    if dataclasses.is_dataclass(x) and not isinstance(x, type) and not _is_cache(x):
        names = tuple(f.name for f in dataclasses.fields(x) if hasattr(x, f.name))
        made = tuple([walk(getattr(x, k)) for k in names])
        return _with_more(Branch(x, names, made), None if id(x) in around else inside)
    if is_plain_object(x) and id(x) not in around:
        fields = fields_of(x)
        known = len(tensors)
        made = tuple([inside(v) for v in fields.values()])
        holds = len(tensors) > known or any(isinstance(leaf, Leaf) for c in made for leaf in leaves(c))
        if holds or type(x) is types.SimpleNamespace:  # an empty one is there to be filled; other objects may be marks
            return Branch(x, tuple(fields), made)
    return Opaque(type(x).__name__) if opaque_ok else x


def _with_more(branch: Branch, inside: Callable[[Any], Any] | None) -> Branch:
    """The branch of a mapping or dataclass with its attributes that are no entries or fields: those that hold tensors or plain
    values alone. inside : takes an attribute apart; None: it is doing so for this object."""
    x: Any = branch.like
    if type(x) in (dict, OrderedDict) or inside is None:
        return branch
    keys, children, is_mapping = [*(branch.keys or ())], [*branch.children], isinstance(x, Mapping)
    for k, v in fields_of(x).items():
        if k in keys and (not is_mapping or x[k] is v) or isinstance(x, UserDict) and k == "data":
            continue
        made = inside(v)
        found = [*leaves(made)]
        plain = v is not None and all(isinstance(leaf, PLAIN) for leaf in found)
        if plain or k in keys or any(isinstance(leaf, Leaf) for leaf in found):
            keys.append(Attribute(k) if is_mapping else k)
            children.append(made)
    return Branch(x, tuple(keys), tuple(children))


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
    return hasattr(type(x), "get_seq_length") or type(x).__name__.endswith("Cache")


def _strip(spec: Any) -> Any:
    """The structure with emptied examples, so that it keeps no tensors alive."""
    if not isinstance(spec, Branch):
        return spec
    children = tuple(_strip(c) for c in spec.children)
    like = spec.like
    if type(like) in (dict, list, tuple):
        like = type(like)()
    elif spec.keys is None:
        like = type(like)
    else:
        like = _emptied(like, spec.keys)
    return Branch(like, spec.keys, children, spec.place)


def _emptied(like: Any, keys: tuple[Any, ...]) -> Any:
    if not isinstance(like, Mapping) and not dataclasses.is_dataclass(like):
        return types.SimpleNamespace() if type(like) is types.SimpleNamespace else object.__new__(type(like))
    twin = copy.copy(like)
    if isinstance(twin, Mapping):
        for k in filter(functools.partial(_is_set, twin), keys):
            _set_item(twin, k, None)
    if dataclasses.is_dataclass(twin):
        for name in (f.name for f in dataclasses.fields(twin)) if isinstance(twin, Mapping) else keys:
            object.__setattr__(twin, name, None)
    return twin


def held_in(x: Any) -> dict[Any, Any]:
    """The entries of a container: by index, key or field."""
    if isinstance(x, tuple | list):
        return dict(enumerate(x))
    return {k: x[k] for k in x} if isinstance(x, Mapping) else fields_of(x)


def owned(x: Any, spec: Any, place: tuple[int, ...] = ()) -> Iterator[Owned]:
    """The containers in an object that can be written to. spec : its structure."""
    held = held_in(x)
    for i, c in enumerate(spec.children):
        if isinstance(c, Branch):
            k, at = i if spec.keys is None else spec.keys[i], (*place, i)
            inside = getattr(x, k.name) if isinstance(k, Attribute) else held[k]
            if not isinstance(inside, tuple):
                yield Owned(inside, at, held_in(inside))
            yield from owned(inside, c, at)


def put_into(arguments: Any, known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in the arguments of a call that are none of these: forward put them there."""
    given = {id(t) for t in known}
    return [t for t in tensors_in(arguments) if id(t) not in given]


def fill(x: Any, tensors: list[Any], spec: Branch, containers: Mapping[Any, Any]) -> None:
    """Give a container of the caller's the entries of this structure. containers : as in `unflatten`."""
    was = held_in(x)
    now = {
        k: was[k] if isinstance(c, Kept) else unflatten(tensors, c, containers)
        for k, c in zip(range(len(spec.children)) if spec.keys is None else spec.keys, spec.children, strict=True)
    }
    if isinstance(x, list | dict):
        refill(x, [*now.values()] if isinstance(x, list) else now)
        return
    for k in was.keys() - now.keys():
        if isinstance(x, MutableMapping):
            del x[k]
        else:
            object.__delattr__(x, k)
    for k, v in now.items():
        if k not in was or v is not was[k]:
            _set_item(x, k, v) if isinstance(x, Mapping) else object.__setattr__(x, k, v)


def _set_item(x: Any, key: Any, value: Any) -> None:
    # Bypasses the overrides of transformers' ModelOutput; the caller sets its fields.
    if isinstance(key, Attribute):
        object.__setattr__(x, key.name, value)
    elif isinstance(x, OrderedDict):  # in the order in which they are set
        OrderedDict.__setitem__(x, key, value)
        OrderedDict.move_to_end(x, key)
    else:
        x[key] = value


def _is_set(x: Any, key: Any) -> bool:
    """Whether an entry or attribute of a mapping is set where it is made anew. The entries of a class with a table of its own
    are not: copies share that table, and get another one as an attribute."""
    return isinstance(key, Attribute) or isinstance(x, dict | UserDict)


def unflatten(tensors: list[Any], spec: Any, containers: Mapping[Any, Any] = MappingProxyType({})) -> Any:
    """The object with these tensors in this structure, the inverse of `flatten`; `Opaque` and `LeftOut` places become
    None.

    containers : the caller's own, by place.
    """
    if isinstance(spec, Leaf):
        return tensors[spec.index]
    if isinstance(spec, Opaque | LeftOut):
        return None
    if not isinstance(spec, Branch):
        return spec
    if spec.place is not None:
        return containers[spec.place]
    children = [unflatten(tensors, c, containers) for c in spec.children]
    like = spec.like
    if spec.keys is None:
        kind = like if isinstance(like, type) else type(like)
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if type(like) is dict:
        return dict(zip(spec.keys, children, strict=True))
    twin = copy.copy(like)
    for k, c, child in zip(spec.keys, children, spec.children, strict=True):
        if isinstance(twin, Mapping):
            if _is_set(twin, k):
                _set_item(twin, k, c)
            left_out = isinstance(child, LeftOut) and dataclasses.is_dataclass(twin)
            if (isinstance(child, Opaque) or left_out) and isinstance(twin, OrderedDict):
                OrderedDict.__delitem__(twin, k)  # a ModelOutput has no keys for fields that are None
        if not isinstance(k, Attribute) and (dataclasses.is_dataclass(twin) or not isinstance(twin, Mapping)):
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
    return [x.kind for x in leaves(spec) if isinstance(x, Opaque)]


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
