"""Models and samples by name, for the command line, the demo and the benchmark of the published table.

Asking for the names imports no torch; each family of models lives in a file of its own.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..arguments import close
from ..errors import UsageError
from ..printed import value

__all__ = ["SUITES", "load", "names"]

if TYPE_CHECKING:
    from torch import nn

Maker = Callable[..., "tuple[nn.Module, Any]"]

# file -> the names in its MODELS, repeated here so that listing them imports no torch
_FILES = {
    "vision": (
        "alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
        "densenet121", "densenet161", "densenet169", "densenet201", "inception_v3",
    ),
    "cells": ("nasnet_cifar10", "amoebanet_cifar10", "darts_cifar10"),
    "gpt": ("gpt", "gpt2"),
    "unet": ("unet", "unet3d"),
}  # fmt: skip

# suite of the benchmark -> its models
SUITES: dict[str, tuple[str, ...]] = {"seeds": (*_FILES["vision"], *_FILES["cells"])}
LISTING = "zoo.json"  # `python tools/list_zoo.py` in a checkout writes it again


@dataclass(frozen=True)
class Listed:
    """One model of the zoo.

    suite : the first benchmark suite that has it; None: none has. batch : examples per step where no batch is given.
    parameters : numbers in all its parameters, shared ones once.
    """

    name: str
    suite: str | None
    batch: int
    parameters: int


@cache
def listing() -> list[Listed]:
    """Every model of the zoo, in the order of `names()`; from a file, so that none is built and no torch imported."""
    known = json.loads(files(__package__).joinpath(LISTING).read_text(encoding="utf-8"))
    return [Listed(name, suite_of(name), **known[name]) for name in names()]


def suite_of(name: str) -> str | None:
    """The first suite that has the model."""
    return next((suite for suite, models in SUITES.items() if name in models), None)


def names() -> list[str]:
    """All names that `load` takes."""
    return [name for family in _FILES.values() for name in family]


def maker(name: str) -> Maker:
    """The function that builds a model and its sample; its arguments are the options of `load`.

    Raises
    ------
    UsageError : an unknown name; the message lists the valid ones.
    RekindleError : the model needs a package that is not installed.
    """
    file = next((file for file, family in _FILES.items() if name in family), None)
    if file is None:
        hint = close(name, names())
        raise UsageError(f"zoo model {value(name)} is unknown; {hint}choose one of: {', '.join(names())}")
    made: Maker = importlib.import_module(f".{file}", __name__).MODELS[name]
    return made


def load(
    name: str, batch: int | None = None, *, seed: int = 0, fake: bool = False, train: bool = True, **options: Any
) -> tuple[nn.Module, Any]:
    """A model and its sample: a tensor, or a dict of keyword arguments.

    Both hold real tensors on the CPU, the same ones for the same seed; the global random state stays as it is. Under an
    ambient FakeTensorMode, or with `fake`, they hold fake tensors, which take no memory.

    batch : examples per step; None takes the published batch, or the model's own default where none was published.
    fake : build under the ambient FakeTensorMode, or a new one. Step the model under that mode too: it is the
        `fake_mode` of every tensor returned.
    train : train mode, else eval mode.
    options : the model's own, e.g. image=64 or dropout=0.1.

    Raises
    ------
    UsageError : an unknown name or option, or a batch below 1; the message lists the valid ones.
    RekindleError : the model needs a package that is not installed.
    """
    return built(name, maker(name), batch, seed=seed, fake=fake, train=train, options=options)


def built(
    name: str, build: Maker, batch: int | None, *, seed: int, fake: bool, train: bool, options: dict[str, Any]
) -> tuple[nn.Module, Any]:
    """The model and sample that `build` makes, with the arguments and errors of `load`."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UsageError(f"batch={value(batch)} must be an int of at least 1")
    valid = [p for p in inspect.signature(build).parameters if p != "batch"]
    unknown = [o for o in options if o not in valid]
    if unknown:
        raise UsageError(f"zoo model {name!r} has no option {unknown[0]!r}; its options are: {', '.join(valid)}")
    given = options if batch is None else {"batch": batch, **options}
    with _surroundings(seed, fake):
        model, sample = build(**given)
    return model.train(train), sample


def _surroundings(seed: int, fake: bool) -> ExitStack:
    """A context with the CPU as device, a seeded generator of its own, and fake tensors if `fake`."""
    import torch

    from ..torch.private import FakeTensor, FakeTensorMode

    with ExitStack() as stack:
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        if fake and not isinstance(torch.empty(0), FakeTensor):
            stack.enter_context(FakeTensorMode())
        return stack.pop_all()
