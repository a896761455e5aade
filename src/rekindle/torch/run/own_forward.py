"""Objects that stand in place of a module's own forward."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from ...errors import RekindleError
from .. import private
from ..offload.part_copies import PartCopies
from ..tensors.lock import LOCK
from ..tensors.objects import InPlace

Self = TypeVar("Self", bound="InPlaceOfForward")
Switched = TypeVar("Switched", bound="SwitchedForward")


@dataclass
class Tally:
    """How often a planned module was called, and what ran the calls.

    ran : calls by the plan. idle : calls in another mode than the plan's (`eval()`), under `no_grad`, or with nothing to train.
    plain : kind of reason why other calls ran plain -> (its first sentence, how many calls).
    """

    ran: int = 0
    idle: int = 0
    plain: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add_plain(self, sentence: str, kind: str = "") -> None:
        """Count a call that ran plain. kind : equal for equal reasons; default: the sentence."""
        first, n = self.plain.get(kind or sentence, (sentence, 0))
        self.plain[kind or sentence] = first, n + 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, calls do not count: a check makes them."""
        before = self.ran, self.idle, {**self.plain}
        try:
            yield
        finally:
            self.ran, self.idle, self.plain = before


class InPlaceOfForward(InPlace):
    """Stands in place of a module's own forward, in the module's `__dict__`, and can be taken off again.

    plain : the module's own forward. tally : counts the module's calls.
    """

    def __init__(self, model: nn.Module):
        self._model, self.tally = weakref.ref(model), Tally()  # weak: the module holds this object
        own = model.__dict__.get("forward")
        self._own: Callable[..., Any] | None = own._own if isinstance(own, type(self)) else own

    @property
    def plain(self) -> Callable[..., Any]:
        model = self._model()
        if model is None:
            raise RekindleError("the planned module was deleted; keep it to call its forward")
        return self._own if self._own is not None else type(model).forward.__get__(model)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the module's own forward: training loops read it to choose the columns of a batch."""
        return inspect.signature(self.plain)

    def take_over(self, model: nn.Module) -> None:
        """Become the module's forward."""
        model.__dict__["forward"] = self

    def give_back(self, model: nn.Module) -> None:
        """Put the module's own forward back, unless something has wrapped this one."""
        if model.__dict__.get("forward") is self:
            del model.__dict__["forward"]
            if self._own is not None:
                model.__dict__["forward"] = self._own

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """The copied module gets its own."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, tally=Tally())
        twin = memo.get(id(self._model()))
        if twin is not None:
            copied._model = weakref.ref(twin)
            copied._own = copy.deepcopy(self._own, memo)  # a bound method of the module becomes the copy's
        return copied

    def __reduce__(self) -> Any:
        """A pickled module takes what stands in place of its forward with it: see `_pickled`."""
        model = self._model()
        if model is None:
            raise pickle.PicklingError("the planned module was deleted; pickle the module, which holds its plan")
        # Where this is read back, the module has no attributes yet: nothing may read them.
        return _arrived, (type(self), model, self._own, self._pickled())

    def _pickled(self) -> Any:
        """All that this object must take along, beside the module and its own forward."""
        return None

    def _unpickle(self, pickled: Any) -> None:
        """Become the pickled object. The module has no attributes yet."""


class SwitchedForward(InPlaceOfForward):
    """Runs the module's own forward while it is switched off. is_off : whether it is.

    copies : copies what the module's calls save to the host; None: nobody copies. inside : the last backward of its calls ran
    inside of the block of autocast in which they were made, and other numbers come of that.
    """

    copies: PartCopies | None = None
    inside = False

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.is_off = False

    def __deepcopy__(self: Switched, memo: dict[int, Any]) -> Switched:
        copied = super().__deepcopy__(memo)
        copied.copies = None  # they go with the order of the first model's calls
        return copied

    def count_plain(self, in_mode: bool) -> None:
        """Count a call that runs plain by where it is made. in_mode : the module trains in the mode of its plan."""
        if self.is_off or LOCK.mine:  # whoever plans calls it
            return
        if not in_mode or not torch.is_grad_enabled():
            self.tally.idle += 1
        else:
            where = runs_plain_in() or "under a dispatch mode, in which torch.compile compiles nothing"
            self.tally.add_plain(f"{type(self._model()).__name__} was called {where}: it runs plain there")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, calls run plain."""
        before, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = before

    def take_over(self, model: nn.Module) -> None:
        """Become the module's forward."""
        self.is_off = False
        super().take_over(model)

    def give_back(self, model: nn.Module) -> None:
        """Put the module's own forward back. If something has wrapped this one, it runs plain from now on."""
        self.is_off = True
        super().give_back(model)


def autocast_of_backward(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """A context for a backward that is no training and runs where forward does: autocast is off in it, as PyTorch recommends,
    unless the loop calls backward inside of its block."""
    inside = any(getattr(vars(m).get("forward"), "inside", False) for m in model.modules())
    return contextlib.nullcontext() if inside else private.disable_autocast()


def runs_plain_in() -> str:
    """The surroundings of the call in words, if planned steps do not work in them; "" if they do."""
    if private.in_func_transform():
        return "under a transform of torch.func"
    if private.in_forward_ad():
        return "in forward-mode automatic differentiation"
    if private.parametrizations_are_cached():
        return "under parametrize.cached(), which keeps values from call to call"
    return private.keeper_of_results()


def _arrived(kind: type[Self], model: nn.Module, own: Callable[..., Any] | None, pickled: Any) -> Self:
    """The object that was pickled, in another process."""
    made = object.__new__(kind)
    made._model, made._own, made.tally = weakref.ref(model), own, Tally()
    made._unpickle(pickled)
    return made


class _Instead:
    """A function that stands in place of a module's forward for a while."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any], before: Callable[..., Any] | None):
        self._module, self._forward, self._before = module, forward, before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._before is not None:
            return copy.deepcopy(self._before, memo)
        return type(self._module).forward.__get__(memo.get(id(self._module), self._module))


@contextlib.contextmanager
def forward_instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, the module has this forward. Copies that the model makes of itself meanwhile have the earlier one."""
    before = module.__dict__.get("forward")
    is_bound = isinstance(forward, InPlaceOfForward | types.MethodType)  # a copy of it belongs to the copied module
    module.__dict__["forward"] = forward if is_bound else _Instead(module, forward, before)
    try:
        yield
    finally:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = before
