"""Runs steps that are no training and puts the model back as it was."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ..capture import hidden_writes
from ..capture.attributes import Attributes, plain_tensors
from ..capture.private import versions_preserved
from ..capture.rng import cuda_indices
from ..capture.side_effects import SideEffects
from ..costs.instrument import Instrument
from ..costs.op_tensors import dense_parts, storage_of, tensors_in
from .shared_casts import block_of_its_own


@contextlib.contextmanager
def as_before(
    model: nn.Module,
    parameters: Iterable[str] = (),
    *,
    given: Iterable[Any] = (),
    writes: WritesUndone | None = None,
    fake: bool = False,
) -> Iterator[None]:
    """Put everything back at the end that a step inside may change.

    This covers buffers, attributes, the named parameters, every random state (torch on the CPU and on the model's GPUs, Python,
    NumPy, generators in attributes) and the Python objects that forward and hooks reach. Version counters of the tensors stay
    too, since a graph that the user holds may have saved the tensors for its backward. Autocast casts anew inside and
    afterwards, as in a block of its own: a cast that a step finds in the cache gets its gradients in another order.

    given : the arguments of forward and the objects in them: those objects are put back, and the random states of the GPUs on
        which tensors among them lie.
    writes : records writes to other tensors, which are then put back. The caller enters it.
    fake : the tensors hold no numbers that could be put back.
    """
    given = list(given)
    carried = [*model.buffers(), *(t for *_, t in plain_tensors(model)), *map(model.get_parameter, parameters)]
    watched = [] if writes is None else writes.tensors
    versions = tuple(t for t in [*carried, *watched] if not t.is_inference())
    on = [*model.parameters(), *carried, *(x for x in given if isinstance(x, torch.Tensor))]
    draws = contextlib.nullcontext() if fake else torch.random.fork_rng(devices=cuda_indices(on))
    unseen = versions_preserved(versions)
    objects = {str(i): x for i, x in enumerate(given) if not isinstance(x, torch.Tensor)}
    # TorchScript chooses its formulas by its first calls, so steps that are no training must not be among them.
    script = torch.jit.optimized_execution(False)
    with SideEffects(model, objects), draws, unseen, script, block_of_its_own():
        attributes = Attributes(model)
        kept = [] if fake else [(t, _copy(t)) for t in carried if not t.is_meta]
        drawn_from = [] if fake else [(g, g.get_state()) for g in _generators(model, given)]
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        try:
            yield
        finally:
            attributes.restore()
            for t, old in [*kept, *(writes.kept if writes is not None else ())]:
                _put_back(t, old)
            for g, state in drawn_from:
                g.set_state(state)
            random.setstate(python)
            np.random.set_state(numpy)


def _generators(model: nn.Module, given: list[Any]) -> list[torch.Generator]:
    held = [*given, *(x for m in model.modules() for x in m.__dict__.values())]
    return [x for x in held if isinstance(x, torch.Generator)]


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Bitwise equality (NaN equals NaN); None equals None."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if len(dense_parts(a)) > 1:  # sparse
        return all(map(same, dense_parts(a), dense_parts(b)))
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _copy(t: torch.Tensor) -> torch.Tensor:
    return _once(t).clone()


def _put_back(t: torch.Tensor, old: torch.Tensor) -> None:
    with torch.no_grad():
        now = _once(t)
        if not same(now, old):
            now.copy_(old)


def _once(t: torch.Tensor) -> torch.Tensor:
    """A view that holds each element of an expanded tensor once: PyTorch refuses to write to elements that share memory."""
    t = t.detach()
    for d in range(t.dim() if t.layout is torch.strided else 0):
        if t.stride(d) == 0 and t.shape[d] > 1:
            t = t.narrow(d, 0, 1)
    return t


class WritesUndone(Instrument):
    """Copies tensors right before an operator writes to them, so that tensors without writes cost no memory.

    kept : (tensor, its copy).
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = list(tensors)
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._by_storage: dict[int, list[torch.Tensor]] = {}
        for t in self.tensors:
            if (storage := storage_of(t)) is not None:
                self._by_storage.setdefault(storage._cdata, []).append(t)

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        schema = getattr(func, "_schema", None)
        if schema is None or not (schema.is_mutable or hidden_writes.writes(func, args)):
            return
        for t in tensors_in((args, kwargs)):
            storage = storage_of(t)
            for hit in self._by_storage.pop(storage._cdata, ()) if storage is not None else ():
                self.kept.append((hit, _copy(hit)))
