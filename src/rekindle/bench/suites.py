"""The suites: their models, and how to build the case of each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .cases import Case, PeakOf

PUBLISHED = ("published_regular_mb", "published_ogc_mb", "measured_regular_mb", "measured_ogc_nonreentrant_mb")
LSTM_STEPS = (64, 128, 256, 512, 1024, 2048, 4096)
RESNET_CONVOLUTIONS = (125, 250, 500, 1000)
WITHOUT_LOGITS = ("gpt2_small", "llama_1b")  # models of modern that stand there once more, with their logits unused
TWIN = {"vocab": 1009, "dropout": 0.0}  # so many tokens that the head's result is larger than its operands


@dataclass(frozen=True)
class Model:
    """A model of a suite. make : builds its case. known : fields of its rows that are known beforehand."""

    make: Callable[[], Case]
    known: dict[str, Any] = field(default_factory=dict)


Suite = dict[str, Model]


def _seeds() -> Suite:
    """The published table at its batch sizes, by its protocol, on fake tensors."""
    from ..zoo import seeds

    found = {}
    for r in seeds.ROWS:
        figures = (r.regular_mb, r.ogc_mb, r.measured_regular_mb, r.measured_ogc_nonreentrant_mb)
        known = {"batch": r.batch, "image": r.image, **dict(zip(PUBLISHED, figures, strict=True))}
        found[r.model] = Model(partial(_seeds_case, r.model, r.batch, r.image), known)
    return found


def _seeds_case(name: str, batch: int, image: int) -> Case:
    """The published protocol; see `zoo.seeds.PROTOCOL`."""
    import torch

    from .. import zoo
    from .cases import Case

    model, sample = zoo.load(name, batch=batch, fake=True, image=image, input_grad=True)
    mode = sample.fake_mode

    def step() -> None:
        x = torch.rand(batch, 3, image, image, requires_grad=True)
        model(x).sum().backward()

    # A plan counts x as resident and its gradient as an activation; the protocol counts both as activations.
    input_bytes = sample.untyped_storage().nbytes()
    return Case(
        model, sample, batch, mode, step, _storage_peak(model, step, mode), input_bytes, lambda: None, True,
    )  # fmt: skip


def _storage_peak(model: nn.Module, step: Callable[[], None], mode: AbstractContextManager[Any]) -> PeakOf:
    """The peak instrument for fake tensors: leaves out parameters, their gradients (which it first creates) and buffers."""
    from ..torch.measure.memory import storage_peak

    with mode:
        step()
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return lambda step, also: storage_peak(step, held, also).peak_bytes


def _of_zoo(names: dict[str, tuple[str, dict[str, Any]]]) -> Suite:
    """Models of the zoo at full size, on fake tensors, with their own loss if they have one.

    names : name in the suite -> (name in the zoo, options).
    """
    return {name: Model(partial(_zoo_case, known, options)) for name, (known, options) in names.items()}


def _zoo_case(name: str, options: dict[str, Any], unused: tuple[str, ...] = ()) -> Case:
    from .. import zoo
    from ..torch.tensors import tree
    from ..torch.tensors.loss import default_loss
    from ..torch.trace import call_arguments
    from .cases import Case
    from .data_branches import data_branches
    from .fused_dropout import fused_dropout

    model, sample = zoo.load(name, fake=True, **options)
    args, kwargs = call_arguments(sample)
    tensors = tree.flatten((args, kwargs))[0]
    fake = tensors[0].fake_mode  # type: ignore[attr-defined]
    mode = _Within(fused_dropout, lambda: fake, data_branches)

    def step() -> None:
        default_loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]

    peak_of = _storage_peak(model, step, mode)

    def twin() -> Case:
        return _real_case(lambda: zoo.load(name, **zoo.small(name) | TWIN), unused)

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
    """The zoo's modern models. Those whose name ends in "-unused" are the same models, whose plans leave the logits out."""
    from ..zoo import SUITES as NAMES

    plain = _of_zoo({name: (name, {}) for name in NAMES["modern"]})
    return plain | {f"{name}-unused": Model(partial(_zoo_case, name, {}, ("logits",))) for name in WITHOUT_LOGITS}


def _deep() -> Suite:
    """The deep ResNet and the LSTM at several sizes; a model's name ends in its size."""
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    names |= {f"resnet-{n}": ("resnet1000", {"layers": n}) for n in RESNET_CONVOLUTIONS}
    names |= {f"lstm-{n}": ("lstm_deep", {"length": n}) for n in LSTM_STEPS}
    return _of_zoo(names)


def _smoke() -> Suite:
    """Three tiny models on real tensors: allocator peaks, bitwise parity."""
    from .. import zoo

    small_gpt: dict[str, Any] = {"n_layer": 2, "d": 64, "length": 32, "vocab": 100, "dropout": 0.1}
    makes: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
        "gpt": lambda: zoo.load("gpt", batch=2, **small_gpt),
        "unet": lambda: zoo.load("unet", batch=2, image=32, width=8, depth=2),
        "cnn": lambda: _cnn(batch=4, image=16),
    }
    return {name: Model(partial(_real_case, make)) for name, make in makes.items()}


def _cpu() -> Suite:
    """Small copies of the zoo's models on real tensors: allocator peaks, wall time, bitwise parity."""
    from .. import zoo

    makes = {name: partial(zoo.load, name, **zoo.small(name)) for name in [*zoo.SUITES["modern"], *zoo.SUITES["deep"]]}
    makes["resnet18"] = partial(zoo.load, "resnet18", batch=4, image=112)
    return {name: Model(partial(_real_case, make)) for name, make in makes.items()}


def _cnn(batch: int, image: int) -> tuple[nn.Module, Tensor]:
    """A small CNN: convolutions with batch norm, in-place ReLU and dropout."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 16), (16, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(*layers, nn.Dropout2d(0.1), nn.AvgPool2d(image), nn.Flatten(), nn.Linear(32, 10))
        return model, torch.rand(batch, 3, image, image)


def _real_case(make: Callable[[], tuple[nn.Module, Any]], unused: tuple[str, ...] = ()) -> Case:
    from ..torch.measure.memory import allocator_peak
    from ..torch.serve.verify import verify
    from ..torch.tensors.loss import default_loss
    from ..torch.trace import call_arguments
    from .cases import Case

    model, sample = make()
    args, kwargs = call_arguments(sample)

    def step() -> None:
        default_loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]

    step()
    batch = len(args[0] if args else next(iter(kwargs.values())))
    return Case(
        model, sample, batch, nullcontext(), step, lambda step, also: allocator_peak(step).peak_bytes, 0,
        lambda: verify(model, sample).ok, False, unused,
    )  # fmt: skip


SUITES: dict[str, Callable[[], Suite]] = {
    "seeds": _seeds,
    "modern": _modern,
    "deep": _deep,
    "cpu": _cpu,
    "smoke": _smoke,
}
