"""The suites: their models, and how to build the case of each.

`benchmarks/zoo_suites.py` of a checkout adds the suites of this repository's own pages: modern, deep and cpu.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .cases import Case, PeakOf

PUBLISHED = ("published_regular_mb", "published_ogc_mb", "measured_regular_mb", "measured_ogc_nonreentrant_mb")


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
        model, sample, batch, mode, step, storage_peak_of(model, step, mode), input_bytes, lambda: None, True,
    )  # fmt: skip


def storage_peak_of(model: nn.Module, step: Callable[[], None], mode: AbstractContextManager[Any]) -> PeakOf:
    """The peak instrument for fake tensors: leaves out parameters, their gradients (which it first creates) and buffers."""
    from ..torch.measure.memory import storage_peak

    with mode:
        step()
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return lambda step, also: storage_peak(step, held, also).peak_bytes


def _smoke() -> Suite:
    """Three tiny models on real tensors: allocator peaks, bitwise parity."""
    from .. import zoo

    small_gpt: dict[str, Any] = {"n_layer": 2, "d": 64, "length": 32, "vocab": 100, "dropout": 0.1}
    makes: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
        "gpt": lambda: zoo.load("gpt", batch=2, **small_gpt),
        "unet": lambda: zoo.load("unet", batch=2, image=32, width=8, depth=2),
        "cnn": lambda: _cnn(batch=4, image=16),
    }
    return {name: Model(partial(real_case, make)) for name, make in makes.items()}


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


def real_case(make: Callable[[], tuple[nn.Module, Any]], unused: tuple[str, ...] = ()) -> Case:
    from ..torch.accept import sample as call_arguments
    from ..torch.measure.memory import allocator_peak
    from ..torch.parts.verify import verify
    from ..torch.tensors.loss import default_loss
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


OF_CHECKOUT = ("modern", "deep", "cpu")
SUITES: dict[str, Callable[[], Suite]] = {
    "seeds": _seeds,
    "smoke": _smoke,
}
