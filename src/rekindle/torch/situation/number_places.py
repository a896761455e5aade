"""Places of Python numbers in the arguments of a call and in attributes of modules: reading and setting them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from ..tensors import tree
from .numbers import Argument, Attribute, Place


def numbers_in(spec: Any, path: tuple[int, ...] = ()) -> dict[Argument, Any]:
    """The ints and floats in a structure that `tree.flatten` returned, by place."""
    if isinstance(spec, tree.Branch):
        return {k: x for i, c in enumerate(spec.children) for k, x in numbers_in(c, (*path, i)).items()}
    return {Argument(path): spec} if type(spec) in (int, float) else {}


def replaced(spec: Any, by: Mapping[Place, Any], path: tuple[int, ...] = ()) -> Any:
    """The structure with these values at their places."""
    if isinstance(spec, tree.Branch):
        children = tuple([replaced(c, by, (*path, i)) for i, c in enumerate(spec.children)])
        return tree.Branch(spec.like, spec.keys, children)
    return by.get(Argument(path), spec)


def read(places: Sequence[Place], spec: Any, model: nn.Module) -> dict[Place, Any] | None:
    """The present numbers at these places; None if one of them is no number any more."""
    given = numbers_in(spec)
    found: dict[Place, Any] = {}
    for p in places:
        try:
            x = given.get(p) if isinstance(p, Argument) else model.get_submodule(p.module).__dict__.get(p.name)
        except AttributeError:  # the submodule is gone
            return None
        if type(x) not in (int, float):
            return None
        found[p] = x
    return found


@contextlib.contextmanager
def attributes_set(model: nn.Module, values: Mapping[Place, Any]) -> Iterator[None]:
    """Inside, these attributes of submodules have these values."""
    tables = [
        (model.get_submodule(p.module).__dict__, p.name, x) for p, x in values.items() if isinstance(p, Attribute)
    ]
    before = [table[name] for table, name, _ in tables]
    for table, name, x in tables:
        table[name] = x
    try:
        yield
    finally:
        for (table, name, _), x in zip(tables, before, strict=True):
            table[name] = x


def name_of(place: Place, spec: Any) -> str:
    """The name of a place for messages: "weight", "options['rate']", "blocks.0.scale"."""
    if isinstance(place, Attribute):
        return f"{place.module}.{place.name}".lstrip(".")
    text, at = "", spec
    for i in place.path:
        key = at.keys[i] if at.keys is not None else i
        text, at = (f"{text}[{key!r}]" if text else str(key)), at.children[i]
    return text
