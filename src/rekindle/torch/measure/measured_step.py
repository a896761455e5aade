"""Runs and measures one step of a model, plain or planned, and puts the model back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from ...errors import RekindleError
from ..capture.left_out import as_if_left_out
from ..costs.operator_calls import FlopCount
from ..run.own_forward import autocast_of_backward, forward_instead
from ..run.sample import Sample
from ..tensors import tree
from ..tensors.loss import default_loss
from ..tensors.sharded import local, sharded_again
from .as_before import as_before, same
from .memory import Levels, allocator_peak, storage_peak

LossOf = Callable[[Any], torch.Tensor]


class Calls(Enum):
    """How a step calls the model.

    ONCE : the results are dropped once the loss has read them. HELD : the caller holds them until the step is over.
    TWICE : two calls before the first backward; random numbers are drawn after each call and backward.
    JOINED : two calls, and one backward goes through both.
    """

    ONCE = auto()
    HELD = auto()
    TWICE = auto()
    JOINED = auto()


@dataclass
class Outcome:
    """The results of one step.

    gradients, written : tensors by name. of_inputs : names of the gradients of inputs. rng : random states after the
        step. drew : whether the step drew random numbers. peak : bytes above those held before. seconds : with the
        instruments on.
    """

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    written: dict[str, torch.Tensor]
    rng: list[torch.Tensor]
    drew: bool
    peak: int
    seconds: float
    of_inputs: tuple[str, ...] = ()

    def figures(self) -> Outcome:
        """The outcome without its tensors, which take as much memory as the model."""
        return Outcome(torch.empty(0), {}, {}, [], self.drew, self.peak, self.seconds)


@dataclass
class Subject:
    """A model, its sample and its loss, for steps that are compared.

    loss : None is `default_loss`. unused : results that it does not read.
    fake : the fake mode of the tensors, or None. device : its allocator is measured. cuda : indices of the GPUs.
    gradients : as in `rekindle.trace`: how the step finds and treats them.
    """

    model: nn.Module
    sample: Sample
    loss: LossOf | None
    fake: Any
    device: torch.device
    cuda: list[int]
    gradients: str = "kept"
    unused: Sequence[str] = ()

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        """Call the model on these arguments, in containers of their own; gives the loss, and all that a loop may hold."""
        tensors, spec = tree.flatten((args, kwargs))
        args, kwargs = tree.unflatten(tensors, spec)
        result = self.model(*args, **kwargs)
        read, held = as_if_left_out(result, self.unused), (result, args, kwargs)
        if self.loss is not None:
            return self.loss(read), held
        return default_loss(read, (args, kwargs), [*tensors, *tree.tensors_in(result)]), held

    def consumed(self) -> Subject:
        """The same, for a step that uses up each gradient as it comes, and so returns none."""
        return replace(self, gradients="consumed")


def run(
    s: Subject, forward: Callable[..., Any], which: str, way: Calls = Calls.ONCE, levels: Levels | None = None
) -> Outcome:
    """Run one step with this forward from the model's present state, and put the state back.

    which : its name in errors. levels : also measures the memory at the marks that the step sets.
    """
    left: list[torch.Tensor] = []
    took: list[float] = []  # by the step alone: starting and reading the instruments may take a hundred times as long
    args, kwargs, tensors = s.sample.fresh()
    outside = autocast_of_backward(s.model)

    def step() -> None:
        begin = time.perf_counter()
        value, made = s.called(args, kwargs)
        if way is not Calls.HELD:
            del made
        if way in (Calls.TWICE, Calls.JOINED):
            _draw(s)
            other = s.called(args, kwargs)[0]
            _draw(s)
            if way is Calls.JOINED:
                value = value + other
            else:
                _backward(other, outside)
                _draw(s)
        _backward(value, outside)
        left.append(value.detach() + other.detach() if way is Calls.TWICE else value.detach())
        for index in s.cuda if s.fake is None else ():
            torch.cuda.synchronize(index)
        took.append(time.perf_counter() - begin)

    with (
        as_before(s.model, s.sample.objects, fake=s.fake is not None) as kept,
        forward_instead(s.model, forward),
        _naming(s.model, which),
        used_up(p for p in s.model.parameters() if p.requires_grad and s.gradients == "consumed"),
    ):
        for p in s.model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad and s.gradients == "kept" else None
        before = _rng(s)
        with sharded_again(s.model):
            if levels is not None:
                peak = levels.measure(step)
            elif s.fake is not None:
                grads = [p.grad for p in s.model.parameters() if p.grad is not None]
                peak = storage_peak(step, [*s.model.parameters(), *s.model.buffers(), *grads]).peak_bytes
            else:
                peak = allocator_peak(step, s.device).peak_bytes
        rng = _rng(s)
        gradients = {k: None if p.grad is None else local(p.grad) for k, p in s.model.named_parameters()}
        written = kept.written(s.model)
        of_inputs: list[str] = []
        if s.fake is None:
            for i, (name, t) in enumerate(zip(s.sample.names, tensors, strict=True)):
                if t.requires_grad and not s.sample.is_owned(i):
                    gradients[name] = t.grad
                    of_inputs.append(name)
                if not s.sample.is_owned(i) and not same(t.detach(), s.sample.tensors[i].detach()):
                    written[name] = t.detach()
        drew = not all(map(same, before, rng))
        return Outcome(left[0], gradients, written, rng, drew, peak, took[0], tuple(of_inputs))


def flops(s: Subject, forward: Callable[..., Any]) -> int:
    """FLOPs of one step. The steps that are compared are not counted, since counting gets between the model and its kernels."""
    args, kwargs, _ = s.sample.fresh()
    with (
        as_before(s.model, s.sample.objects, fake=s.fake is not None),
        forward_instead(s.model, forward),
        FlopCount() as count,
    ):
        _backward(s.called(args, kwargs)[0], autocast_of_backward(s.model))
    return count.total


def used_up(parameters: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Inside, the gradients of these parameters are freed as they come, as by an optimizer that steps in backward."""

    def free(p: torch.Tensor) -> None:
        p.grad = None

    return at_each_gradient(parameters, free)


@contextlib.contextmanager
def at_each_gradient(parameters: Iterable[torch.Tensor], then: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """A context in which backward calls `then(parameter)` as soon as it has made the gradient of one of the parameters."""
    handles = [p.register_post_accumulate_grad_hook(then) for p in parameters]
    try:
        yield
    finally:
        for h in handles:
            h.remove()


def _backward(value: torch.Tensor, surroundings: contextlib.AbstractContextManager[Any]) -> None:
    with surroundings:
        value.backward()  # type: ignore[no-untyped-call]


def _draw(s: Subject) -> None:
    """Draw random numbers, as a loss, a hook or the loop may do between two calls."""
    for d in {"cpu", str(s.device)}:
        torch.rand(3, device=d)


@contextlib.contextmanager
def _naming(model: nn.Module, which: str) -> Iterator[None]:
    """Turn an exception of the module into the cause of an error that names the step."""
    try:
        yield
    except (RekindleError, torch.OutOfMemoryError):
        raise
    except Exception as e:
        raise RekindleError(
            f"the {which} step of {type(model).__name__} failed with {type(e).__name__}: {e}. The model is as it was; see that "
            "model(sample), its loss and backward work"
        ) from e


def _rng(s: Subject) -> list[torch.Tensor]:
    if s.fake is not None:
        return []
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in s.cuda)]
