"""Puts back as it was everything that code of a model may change."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ..private import tree_leaves
from ..tensors import rng
from .attributes import Attributes, Changes, Kind, kind_of, plain_tensors, tensors_in_attributes
from .restorable import BYTES_MOST, Iterators, PutBack
from .side_effects import SideEffects
from .tensor_state import Tensors, plainly


class Before:
    """A model as it was before the code inside of `kept`, whose arguments these are.

    tensors : its tensors. effects : the Python objects that its code reaches. changes : of attributes; set by `put_back`.
    """

    def __init__(self, model: nn.Module, given: Iterable[Any] | Mapping[str, Any], captures: bool, fake: bool):
        objects = given if isinstance(given, Mapping) else {str(i): x for i, x in enumerate(given)}
        own = [*model.named_parameters(), *model.named_buffers(), *((k, t) for k, _, _, t in plain_tensors(model))]
        leaves = [(k, t) for k, x in objects.items() for t in tree_leaves(x)]
        own += [(f"the argument {k}", t) for k, t in leaves if isinstance(t, torch.Tensor)]
        devices = () if fake else ("cpu", *(f"cuda:{i}" for i in rng.cuda_indices(t for _, t in own)))
        self._drawn = {d: rng.state(d) for d in devices}
        self.effects = SideEffects(model, {k: x for k, x in objects.items() if not isinstance(x, torch.Tensor)})
        self.effects.watch()
        near = [(k, t, BYTES_MOST if captures else None) for k, t in (*own, *self.effects.tensors(of_module=True))]
        far = [(k, t, BYTES_MOST) for k, t in self.effects.tensors(of_module=False)]
        with plainly():
            self.tensors = Tensors([*near, *far])
        self._attributes, self.changes = Attributes(model), Changes()
        self._own = _own(model)
        self._iterators = Iterators(model, self.effects.watched)
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)

    def put_back(self) -> None:
        """Put everything back."""
        back = PutBack()
        back("iterators", self._iterators.give_back)
        back("attributes", lambda: setattr(self, "changes", self._attributes.restore()))
        with plainly():
            self.tensors.put_back(back)
            for device, state in self._drawn.items():
                back(f"torch's random state of {device}", functools.partial(rng.restore, state, device))
        back("Python's random state", lambda: random.setstate(self._python))
        back("NumPy's random state", lambda: np.random.set_state(self._numpy))
        self.effects.put_back(back)
        back.finish()

    def again(self) -> None:
        """Put everything back, for code that begins anew inside of `kept`."""
        self.put_back()
        self._iterators.take()

    def moved(self, model: nn.Module) -> bool:
        """Whether one of the tensors has another place or shape, or the model other parameters or submodules."""
        return self.tensors.moved() or self._own[0] != _own(model)[0]

    def set_up(self, model: nn.Module) -> bool:
        """Whether code has moved something, put tensors of another kind into attributes, or changed trained numbers."""
        with plainly():
            trained = [p for p in model.parameters() if p.requires_grad]
            return self.moved(model) or self._own != _own(model) or any(map(self.tensors.differs, trained))

    def written(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Copies, by name, of the tensors to which forward may write, as they are now: buffers, tensors that are plain
        attributes, and parameters that differ from before."""
        with plainly():
            parameters = [(k, p) for k, p in model.named_parameters() if self.tensors.differs(p)]
        attributes = [(k, t) for k, _, _, t in plain_tensors(model)]
        return {k: t.detach().clone() for k, t in (*model.named_buffers(), *attributes, *parameters)}


def _own(model: nn.Module) -> tuple[list[int], dict[str, Kind]]:
    """(ids of submodules and parameters, kinds of other tensors)."""
    ids = [*map(id, model.modules()), *map(id, model.parameters())]
    return ids, {k: kind_of(t) for k, t in tensors_in_attributes(model).items()}


@contextlib.contextmanager
def kept(
    model: nn.Module, given: Iterable[Any] | Mapping[str, Any] = (), *, captures: bool = False, fake: bool = False
) -> Iterator[Before]:
    """Put everything back at the end that code inside may change, whether it fails or not.

    This covers parameters, buffers and tensors in attributes (objects, memory, shapes, flags, gradients, hooks, version
    counters), attributes, random states (torch's on the CPU and on the model's GPUs, Python's, NumPy's) and the
    Python objects that forward and hooks reach, generators among them. Taking items of an iterator is refused.

    given : the arguments of forward, and the objects in them; a mapping gives them names for `SideEffects`.
    captures : no step runs inside on real tensors, so that contents are copied up to `BYTES_MOST` alone.
    fake : the tensors hold no numbers that could be put back.

    Raises
    ------
    RekindleError : something could not be put back; the message names all of it.
    """
    before = Before(model, given, captures, fake)
    try:
        with before.tensors.as_base():
            yield before
    finally:
        before.put_back()
