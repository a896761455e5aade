"""The first batch of a data loader, and the call that a training step makes with it; nothing is used up by looking."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from ..errors import UsageError

REMEDY = "give the arguments of the module as sample=, or a function from a batch to them"


# The module that a training step calls first counts as the model if it holds this share of the trained elements; a guess.
MODEL_LEAST_SHARE = 0.5


def first_batch(loader: Any) -> Any:
    """The batch with which an iteration over the loader begins. Worker processes are not started: a DataLoader's samples are
    read and collated here. Random states are as they were, those of the loader's own generators too.

    Raises
    ------
    UsageError : the loader can be iterated only once, or it is empty.
    """
    if isinstance(loader, Iterator):
        raise UsageError(
            f"the training data are of type {type(loader).__name__}, which can be read only once; {REMEDY}"
        )
    with random_states_kept(_generators(loader)):
        try:
            return _first(loader)
        except StopIteration:
            raise UsageError(f"the training data hold no batch, so there is nothing to plan for; {REMEDY}") from None


def _first(loader: Any) -> Any:
    if isinstance(loader, dict):  # Lightning joins the batches of several loaders in the same way
        return {k: first_batch(x) for k, x in loader.items()}
    if isinstance(loader, list | tuple) and loader and all(isinstance(x, DataLoader) for x in loader):
        return type(loader)(first_batch(x) for x in loader)
    if type(loader) is not DataLoader:
        return next(iter(loader))
    torch.empty((), dtype=torch.int64).random_(
        generator=loader.generator
    )  # a DataLoader draws a seed for its workers first
    data: Any = loader.dataset
    if isinstance(data, IterableDataset):
        items = iter(data)
        if items is data:
            raise UsageError(f"the data set {type(data).__name__} can be read only once; {REMEDY}")
        if loader.batch_size is None:
            return loader.collate_fn(next(items))
        found = list(itertools.islice(items, loader.batch_size))
        if not found:
            raise StopIteration
        return loader.collate_fn(found)
    if loader.batch_sampler is None:
        return loader.collate_fn(data[next(iter(loader.sampler))])
    chosen = list(next(iter(loader.batch_sampler)))
    many = getattr(data, "__getitems__", None)
    return loader.collate_fn(many(chosen) if many is not None else [data[i] for i in chosen])


def _generators(loader: Any) -> list[torch.Generator]:
    """Generators that the order of a loader's samples comes from."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    held = (getattr(owner, "generator", None) for owner in owners)
    return [g for g in held if isinstance(g, torch.Generator)]


@contextlib.contextmanager
def random_states_kept(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Put back at the end the random states of PyTorch on every device in use, of Python, of NumPy and of these generators."""
    states = [(g, g.get_state()) for g in generators]
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    on = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=on):
        try:
            yield
        finally:
            for g, state in states:
                g.set_state(state)
            random.setstate(python)
            np.random.set_state(numpy)


class _ModuleReached(BaseException):
    """Ends a training step where it calls the module; no `except Exception` of the step catches it."""


@dataclass(frozen=True)
class FirstCall:
    """The first call that a training step makes of a module. sample : its arguments, as `rekindle.checkpoint` takes them."""

    path: str
    module: nn.Module
    sample: Any


def first_call(owner: nn.Module, step: Callable[..., Any], batch: Any, path: str | None) -> FirstCall:
    """The first call of a submodule in `step(batch)` or `step(batch, 0)`, which runs up to that call and no further.

    owner : the module whose step it is. path : the name of the submodule, "" for the owner itself; None: the first module
    that is called and has parameters to train.

    Random states and the mode of gradients are as they were.

    Raises
    ------
    UsageError : the step fails before that call, or makes none; or, where the module is not named, the first one holds few
        of the parameters that are trained.
    """
    names = {m: name for name, m in owner.named_modules()}
    found: list[FirstCall] = []

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path is None and not _trained(module):
            return
        found.append(FirstCall(names[module], module, _sample(args, kwargs, module)))
        raise _ModuleReached

    watched = owner.modules() if path is None else [owner.get_submodule(path)]
    handles = [m.register_forward_pre_hook(called, with_kwargs=True, prepend=True) for m in watched]
    try:
        with random_states_kept(), torch.enable_grad():
            step(batch, *([0] if _takes_index(step) else []))
    except _ModuleReached:
        pass
    except Exception as e:
        where = "calls a module" if path is None else f"calls {path or type(owner).__name__}"
        raise UsageError(
            f"{step.__name__} of {type(owner).__name__} fails before it {where}: {type(e).__name__}: {e}; {REMEDY}"
        ) from e
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise UsageError(
            f"{step.__name__} of {type(owner).__name__} does not call {path or 'a module that is trained'}; name the submodule "
            f"that it calls, and {REMEDY}"
        )
    if path is None:
        _check_share(owner, found[0])
    return found[0]


def _check_share(owner: nn.Module, call: FirstCall) -> None:
    share = _trained(call.module) / max(1, _trained(owner))
    if share < MODEL_LEAST_SHARE:
        others = [name for name, m in owner.named_children() if _trained(m)]
        raise UsageError(
            f"training_step of {type(owner).__name__} first calls {call.path!r}, which holds {share:.0%} of the trained "
            f"parameters; name the module to plan, such as {' or '.join(map(repr, others))}, or put the modules into one"
        )


def _trained(module: nn.Module) -> int:
    """Elements of parameters that are trained."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _sample(args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module) -> Any:
    """The arguments of a call as a sample. Beside keywords, positional arguments go under the names of forward's parameters."""
    if not kwargs:
        return tuple(map(_leaf, args))
    bound = inspect.signature(module.forward).bind_partial(*args)
    return {k: _leaf(x) for k, x in {**bound.arguments, **kwargs}.items()}


def _leaf(x: Any) -> Any:
    """The argument as a value by itself: a tensor that other operations made is taken off their graph."""
    return x.detach().requires_grad_() if isinstance(x, torch.Tensor) and not x.is_leaf else x


def _takes_index(step: Callable[..., Any]) -> bool:
    """Whether the step takes the number of the batch as well."""
    kinds = [p.kind for p in inspect.signature(step).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(k in positional for k in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
