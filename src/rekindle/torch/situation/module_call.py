"""One call of a module, by the names of forward's parameters.

Keyword order, positions and defaults that are spelled out make no difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..tensors import tree
from ..tensors.objects import PLAIN
from .surroundings import is_cast_once, shares_casts, surroundings
from .values import constants, key_of

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Form:
    """How the caller passed arguments, so that forward can be called in the same way.

    positional : names of the arguments passed by position, in order. rest : name of the `*args` parameter, if it got any.
    named : names of the arguments passed by keyword. more : name of the `**kwargs` parameter, if it got any.
    """

    positional: tuple[str, ...] = ()
    rest: str | None = None
    named: tuple[str, ...] = ()
    more: str | None = None

    def arguments(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of the call with these values by parameter name."""
        args = [given[k] for k in self.positional]
        kwargs = {k: given[k] for k in self.named}
        if self.rest is not None:
            args += given[self.rest]
        if self.more is not None:
            kwargs |= given[self.more]
        return tuple(args), kwargs


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of one call of the module, taken apart.

    tensors : the distinct tensors, in order of forward's parameters.
    spec : the structure they stand in; `tree.unflatten` gives the arguments by parameter name.
    form : how the caller passed them. given : the arguments themselves, by parameter name.
    inside : its backward is expected inside of the block of autocast in which it is made.
    """

    tensors: list[torch.Tensor]
    spec: Any
    form: Form
    given: dict[str, Any]
    inside: bool = False

    def on(self, tensors: list[torch.Tensor]) -> ModuleCall:
        """The same call on other tensors, in containers of its own."""
        return replace(self, tensors=tensors, given=tree.unflatten(tensors, self.spec))

    @property
    def key(self) -> Key:
        """A key of everything outside of the module that shapes the graph.

        It holds shapes, strides, dtypes, devices, requires_grad, which tensors share memory, constants, `surroundings`, and
        under autocast the numbers of the tensors that it casts once for all their uses; it casts others at each use.
        """
        shapes = [(tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad, type(t)) for t in self.tensors]
        once = tuple([i for i, t in enumerate(self.tensors) if is_cast_once(t)]) if shares_casts() else ()
        return (*shapes, _shared(self.tensors)), constants(self.spec), (*surroundings(), once, self.inside)

    def taken_apart(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arguments by parameter name that calls forward as the caller did."""

        def call(**given: Any) -> Any:
            args, kwargs = self.form.arguments(given)
            return forward(*args, **kwargs)

        return call

    @property
    def odd(self) -> str:
        """The first argument that no plan serves, in words; "" if there is none."""
        for t in self.tensors:
            if t.layout is not torch.strided or t.is_nested:
                return "a nested tensor" if t.is_nested else f"a tensor of layout {t.layout}"
            if t.is_inference():  # torch saves none for backward, and a plan may save what eager does not
                return "a tensor made under torch.inference_mode"
        return ""

    @property
    def used_up(self) -> list[str]:
        """Names of the arguments that hold iterators, which one reading uses up."""
        named = zip(self.spec.keys, self.spec.children, strict=True)
        return [str(k) for k, spec in named if any(isinstance(x, Iterator) for x in tree.leaves(spec))]

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) as the caller passed them."""
        return self.form.arguments(tree.unflatten(self.tensors, self.spec))

    @property
    def shapes(self) -> str:
        """The shapes of the tensors, for messages."""
        return ", ".join("nested" if t.is_nested else str(list(t.shape)) for t in self.tensors)


def as_arguments(spec: Any) -> Any:
    """The structure of (args, kwargs) in which every argument is a keyword, for a structure by parameter name."""
    return tree.Branch((), None, (tree.Branch((), None, ()), spec))


def _shared(tensors: list[torch.Tensor]) -> Key:
    """A key of which tensors share memory, and at which offsets, since forward may write to one of them."""
    if len(tensors) < 2:
        return ()
    first: dict[int, int] = {}
    at = [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]
    if len(first) == len(tensors):
        return ()
    return tuple([(i, t.storage_offset()) for i, t in zip(at, tensors, strict=True)])


def bind(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModuleCall:
    """The call `forward(*args, **kwargs)` by parameter names.

    Arguments equal to a plain default are left out. If the names are unknown, or the arguments do not fit them, positions and
    keywords stay as they are, and forward itself will raise.
    """
    found = _by_name(forward, args, kwargs)
    if found is None:
        given: dict[str, Any] = {"args": tuple(args), "kwargs": dict(kwargs)}
        form = Form(rest="args", more="kwargs")
    else:
        given, form = found
    tensors, spec = tree.flatten(given)
    return ModuleCall(tensors, spec, form, given)


def _by_name(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], Form] | None:
    signature = _signature(forward)
    if signature is None:
        return None
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    given: dict[str, Any] = {}
    positional: list[str] = []
    named: list[str] = []
    rest = more = None
    left = len(args)
    by_position = 0  # number of positional arguments to pass, up to the last one that is no default
    kinds = signature.parameters
    for name, value in bound.items():
        kind = kinds[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            rest, given[name], by_position, left = name, value, len(positional), 0  # what follows is keyword-only
        elif kind is inspect.Parameter.VAR_KEYWORD:
            more, given[name] = name, value
        elif left > 0:
            left -= 1
            positional.append(name)
            given[name] = value
            if not _is_default(value, kinds[name].default):
                by_position = len(positional)
        elif not _is_default(value, kinds[name].default):
            named.append(name)
            given[name] = value
    for name in positional[by_position:]:
        del given[name]
    ordered = {k: given[k] for k in kinds if k in given and not (k == more and not given[k])}
    # A default in the middle is left out as well as one at the end: it makes the same graph, spelled out or not.
    defaults = {k for k in positional[:by_position] if _is_default(given[k], kinds[k].default)}
    if defaults and rest is None:
        first = next(i for i, k in enumerate(positional) if k in defaults)
        if all(kinds[k].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for k in positional[first:by_position]):
            named = [k for k in positional[first:by_position] if k not in defaults] + named
            ordered = {k: v for k, v in ordered.items() if k not in defaults}
            by_position = first
    return ordered, Form(tuple(positional[:by_position]), rest, tuple(named), more if more in ordered else None)


def _is_default(value: Any, default: Any) -> bool:
    if default is inspect.Parameter.empty:
        return False
    if value is default:
        return True
    # by their keys: 0.0 == -0.0, and a set of 1 == a set of True
    return type(value) is type(default) and isinstance(value, PLAIN) and key_of(value) == key_of(default)


def _signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of forward, looked up once per function; None: unknown."""
    function = getattr(forward, "__func__", forward)
    try:
        known = _SIGNATURES.setdefault(function, {})
    except TypeError:  # no weak reference: looked up each time
        known = {}
    is_bound = function is not forward
    if is_bound not in known:
        try:
            known[is_bound] = inspect.signature(forward)
        except (TypeError, ValueError):  # compiled functions have no signature
            known[is_bound] = None
    return known[is_bound]


_SIGNATURES: WeakKeyDictionary[Any, dict[bool, inspect.Signature | None]] = WeakKeyDictionary()
