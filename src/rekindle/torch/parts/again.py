"""Parts that cannot be captured: their forward runs again in backward, from their inputs.

Only a part whose forward does nothing but compute may run twice: it writes to no buffer or input, and changes no Python object,
such as a list that it is given. It may set attributes of its modules to plain values, such as a count or a dtype: these are put
back as they were, before the forward runs again and after it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...parts.figures import Figures
from ..capture import private, tree
from ..capture.attributes import Attributes
from ..capture.flat import by_parameter
from ..capture.lock import LOCK
from ..capture.loss import default_loss
from ..capture.side_effects import SideEffects
from ..costs.flops import FlopCount
from ..costs.instrument import Instrument
from ..costs.levels import Levels
from ..costs.op_tensors import storage_of
from ..run.as_before import as_before
from ..run.measured_step import gradients_as_before
from ..run.own_forward import InPlaceOfForward
from ..run.sample import copies, owned
from ..trace import plain_forward
from .caches import without_caches
from .recording import Recorded


@dataclass(frozen=True)
class AgainSettings:
    """timings : how often the forward, and the plain step, is timed."""

    timings: int = 3


SETTINGS = AgainSettings()


class AgainForward(InPlaceOfForward):
    """The forward of a part that saves its inputs alone: in backward it runs once more, with the same random state.

    plain : the module's own forward. is_off : calls run plain.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self._training = model.training
        self.is_off = False

    def _pickled(self) -> Any:
        return self._training, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        self._training, self.is_off = pickled

    @private.opaque_to_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        runs_plain = (
            self.is_off or LOCK.mine or not torch.is_grad_enabled() or model is None or model.training != self._training
            or private.in_func_transform() or private.in_forward_ad()
        )  # fmt: skip
        if runs_plain:
            return self.plain(*args, **kwargs)
        assert model is not None
        return checkpoint(_Rerun(model, self.plain), *args, use_reentrant=False, **kwargs)

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


class _Rerun:
    """A forward that may run again: each time it finds the plain attributes of the first time, and later runs change none."""

    def __init__(self, model: nn.Module, plain: Callable[..., Any]):
        self._model, self._plain = model, plain
        self._before = _plain_attributes(model)
        self._ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with without_caches(self._model):
            return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not self._ran:
            self._ran = True
            return self._plain(*args, **kwargs)
        now = _plain_attributes(self._model)
        _put_back(self._model, self._before)
        try:
            return self._plain(
                *args, **kwargs
            )  # torch.utils.checkpoint ends it by an exception where all is recomputed
        finally:
            _put_back(self._model, now)


def _plain_attributes(model: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The attributes of all modules that are plain values."""
    return [(m, {k: x for k, x in m.__dict__.items() if isinstance(x, tree.PLAIN)}) for m in model.modules()]


def _put_back(model: nn.Module, noted: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    for m, values in noted:
        for k in [k for k, x in m.__dict__.items() if isinstance(x, tree.PLAIN) and k not in values]:
            del m.__dict__[k]
        m.__dict__.update(values)


def only_computes(module: nn.Module, given: Recorded) -> bool:
    """Whether a forward of the module changes nothing but what it returns, and plain attributes, so that it may run twice."""
    tensors = copies(given.call.tensors, owned(module))
    args, kwargs = given.call.form.arguments(tree.unflatten(tensors, given.call.spec))
    effects = SideEffects(module, by_parameter(args, kwargs))
    with as_before(module, given=[*tensors, *args, *kwargs.values()]), given.surroundings():
        seen = [*tensors, *module.buffers(), *module.parameters()]
        versions = [t._version for t in seen]
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        with effects:
            attributes = Attributes(module)
            with torch.no_grad():
                plain_forward(module)(*args, **kwargs)
            plain = {
                f"{path}.{k}".lstrip(".") for path, m in module.named_modules() for k, x in m.__dict__.items()
                if isinstance(x, tree.PLAIN)
            }  # fmt: skip
            changes = attributes.restore()
        drew = python != random.getstate() or str(numpy) != str(np.random.get_state(legacy=False))
        wrote = versions != [t._version for t in seen]
    changed = changes.assigned or changes.collected or set(changes.other) - plain
    return not (changed or effects.changed or effects.dropped or effects.drawn or drew or wrote)


def figures_of(module: nn.Module, given: Recorded, device: torch.device, cost: str) -> Figures:
    """What the part takes whose forward runs again.

    One step of it by itself is measured; its forward, and its plain step, are timed or counted. Backward costs less than twice
    the forward where parameters are frozen, so no such estimate serves.
    """
    levels = Levels(device)
    out_bytes = 0
    forward = AgainForward(module)

    def step() -> None:
        nonlocal out_bytes
        result = forward(*args, **kwargs)
        tensors = tree.tensors_in(result)
        given_storages = {id(storage_of(t)) for t in twins}
        made = {id(s): s.nbytes() for t in tensors if (s := storage_of(t)) is not None and id(s) not in given_storages}
        out_bytes = sum(made.values())
        levels.mark("between")
        default_loss(result).backward()

    def run_forward() -> Any:
        return plain_forward(module)(*args, **kwargs)

    with gradients_as_before(module, []), as_before(module), given.surroundings():
        for p in module.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        twins = copies(given.call.tensors, owned(module))
        args, kwargs = given.call.form.arguments(tree.unflatten(twins, given.call.spec))
        levels.measure(step)
        extra = _cost(run_forward, device, cost)
        plain = _cost(lambda: default_loss(run_forward()).backward(), device, cost)
    before, after = levels.found
    return Figures(
        held_bytes=max(0, before.level - out_bytes),
        forward_bytes=before.peak,
        backward_bytes=max(0, after.peak - out_bytes),
        extra=extra,
        plain=plain,
    )


def _cost(run: Callable[[], Any], device: torch.device, cost: str) -> float:
    """What the code costs: FLOPs, operators, or seconds of the fastest of a few runs."""
    if cost == "flops":
        with FlopCount() as count:
            run()
        return float(count.total)
    if cost == "unit":
        with _Ops() as ops:
            run()
        return float(ops.count)
    taken = []
    for _ in range(SETTINGS.timings):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return min(taken)


class _Ops(Instrument):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.count += 1
