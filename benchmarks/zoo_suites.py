"""Suites of the pages in docs/benchmarks that are not installed: `more_models` at full size on fake tensors (modern, deep)
and small copies of them on real ones (cpu). Importing this module adds them to the suites of `rekindle bench`.

Steps on fake CPU tensors run GPU dropout and take the branches that they take on real data. Without that, plain steps, and so
all rows, would hold more memory than a real step on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import more_models
import torch
from small_copies import small

from rekindle.bench.cases import Case
from rekindle.bench.methods import COMPARATORS, COMPARATORS_OF_ALL, COSTS, DEFAULTS
from rekindle.bench.suites import SUITES, Model, Suite, real_case, storage_peak_of
from rekindle.torch import accept
from rekindle.torch.capture.known_values import KnownValues
from rekindle.torch.tensors import tree
from rekindle.torch.tensors.loss import default_loss

LSTM_STEPS = (64, 128, 256, 512, 1024, 2048, 4096)
RESNET_CONVOLUTIONS = (125, 250, 500, 1000)
WITHOUT_LOGITS = ("gpt2_small", "llama_1b")  # models of modern that stand there once more, with their logits unused
TWIN = {"vocab": 1009, "dropout": 0.0}  # so many tokens that the head's result is larger than its operands


def _at_full_size(names: dict[str, tuple[str, dict[str, Any]]]) -> Suite:
    """Models at full size, on fake tensors, with their own loss if they have one.

    names : name in the suite -> (name of `more_models`, options).
    """
    return {name: Model(partial(zoo_case, known, options)) for name, (known, options) in names.items()}


def zoo_case(name: str, options: dict[str, Any], unused: tuple[str, ...] = ()) -> Case:
    """A model on fake tensors; its twin is a small copy on real ones."""
    model, sample = more_models.load(name, fake=True, **options)
    args, kwargs = accept.sample(sample)
    tensors = tree.flatten((args, kwargs))[0]
    fake = tensors[0].fake_mode  # type: ignore[attr-defined]
    mode = _Within(fused_dropout, lambda: fake, data_branches)

    def step() -> None:
        default_loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]

    peak_of = storage_peak_of(model, step, mode)

    def twin() -> Case:
        return real_case(lambda: more_models.load(name, **small(name) | TWIN), unused)

    return Case(model, sample, len(tensors[0]), mode, step, peak_of, 0, lambda: None, True, unused, twin)


class _Within:
    """Several contexts as one that can be entered many times; enters them one inside the other."""

    def __init__(self, *contexts: Callable[[], AbstractContextManager[Any]]) -> None:
        self.contexts = contexts
        self.entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            self.entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().close()


def _modern() -> Suite:
    """The modern models. Those whose name ends in "-unused" are the same models, whose plans leave the logits out."""
    plain = _at_full_size({name: (name, {}) for name in more_models.SUITES["modern"]})
    return plain | {f"{name}-unused": Model(partial(zoo_case, name, {}, ("logits",))) for name in WITHOUT_LOGITS}


def _deep() -> Suite:
    """The deep ResNet and the LSTM at several sizes; a model's name ends in its size."""
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    names |= {f"resnet-{n}": ("resnet1000", {"layers": n}) for n in RESNET_CONVOLUTIONS}
    names |= {f"lstm-{n}": ("lstm_deep", {"length": n}) for n in LSTM_STEPS}
    return _at_full_size(names)


def _cpu() -> Suite:
    """Small copies of the models on real tensors: allocator peaks, wall time, bitwise parity."""
    makes = {
        name: partial(more_models.load, name, **small(name))
        for name in [*more_models.SUITES["modern"], *more_models.SUITES["deep"]]
    }
    makes["resnet18"] = partial(more_models.load, "resnet18", batch=4, image=112)
    return {name: Model(partial(real_case, make)) for name, make in makes.items()}


@contextmanager
def data_branches() -> Iterator[None]:
    """Inside the context, questions about values that follow from shapes are answered, as during capture.

    Transformers checks whether its mask masks anything, but skips the check for fake tensors: it then materialises the mask and
    repeats keys and values, which no step on real data does. Here, `transformers` no longer takes a fake tensor of known value
    for a fake one.
    """
    known = KnownValues((), None)
    library = sys.modules.get("transformers.utils.import_utils")
    asks = getattr(library, "is_fake_tensor", None)
    if asks is not None:
        library.is_fake_tensor = lambda x: asks(x) and not known.knows(x)  # type: ignore[union-attr]
    try:
        with known:
            yield
    finally:
        if asks is not None:
            library.is_fake_tensor = asks  # type: ignore[union-attr]


@contextmanager
def fused_dropout() -> Iterator[None]:
    """Inside the context, `aten::dropout` on the CPU runs the fused op of GPUs, which saves one byte per element for its mask.

    Eager PyTorch has no fused dropout on the CPU and saves the mask as floats; captured graphs always use the fused op. Without
    this, plans would be compared with a plain step that holds more memory than on any GPU.
    """

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or p == 0:
            return x
        return torch.ops.aten.native_dropout.default(x, p, True)[0]

    # the override ends with the context
    lib = torch.library.Library("aten", "IMPL")
    lib.impl("dropout", dropout, "AutogradCPU")
    try:
        yield
    finally:
        lib._destroy()


SUITES.update({"modern": _modern, "deep": _deep, "cpu": _cpu})
DEFAULTS.update(
    {
        "modern": ("plain", *COMPARATORS, "others", "auto@5%", "auto@14%", "auto=0.5", "auto=0.3", "auto=0.25"),
        "deep": ("plain", *COMPARATORS_OF_ALL, "chen-sqrt", "chen-recursive", "hong-exact", "auto@29%", "auto@30%"),
        "cpu": ("plain", *COMPARATORS, "auto@8%", "auto=0.5", "auto=0.3"),
    }
)
COSTS.update({"modern": "unit", "deep": "seconds", "cpu": "seconds"})
