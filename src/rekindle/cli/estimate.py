"""The command `estimate`: will a model's training step fit a device, at which batch, without and with a plan?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..arguments import choice
from ..ask import EFFORTS, GRADIENTS, Goal
from ..errors import UsageError
from ..printed import value
from ..saying.progress import announce, telling
from ..show.estimate_text import batches_table, estimate_table, modules_table
from ..torch.costs import devices
from . import completing
from .answer import Answer
from .models import load_model, takes_batch
from .options import Batch, HostBudget, Json, Model, Offload, OptimizerName, Target

Device = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory of the device (24GiB), or its name (h200). Without it nothing is compared."
    ),
]
Effort = Annotated[
    str, typer.Option(metavar="EFFORT", help="How long plans are searched for: quick, normal or thorough.")
]
Plans = Annotated[bool, typer.Option("--plans/--no-plans", help="Look for plans, which takes longer.")]


def estimate(
    model: Model,
    batch: Batch = None,
    device: Device = None,
    optimizer: OptimizerName = "adamw",
    target: Target = None,
    effort: Effort = "quick",
    offload: Offload = "no",
    host_budget: HostBudget = None,
    gradients: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            autocompletion=completing.gradients,
            help="How the loop treats gradients: kept, fresh or consumed (as in `plan`). Default: fresh, but kept for plans.",
        ),
    ] = None,
    plans: Plans = True,
    json: Json = False,
) -> Answer:
    """Estimate the memory of a plain training step, without a GPU; with --device, also the largest batch that fits.

    It shows what the peak consists of, the ten heaviest modules, and for each batch the plain step, the step planned
    for the device, and its extra time.
    """
    choice("effort", effort, EFFORTS)
    if gradients is not None:
        choice("gradients", gradients, GRADIENTS)
    budget, target = _budget(device, target)
    steps = None if optimizer.strip().lower() == "none" else optimizer
    with telling(None):
        announce(None, f"loading {model}")
        made, sample, other, words = _loaded(model, batch)
        from ..torch.estimate.largest import FIRST, largest_batch
        from ..torch.estimate.verbs import estimate as estimated

        found = estimated(made, sample, steps, target=target, gradients=gradients or "fresh")
        largest = None
        if budget is not None:
            first = batch or FIRST
            largest = largest_batch(
                made, other, budget, steps, target=target, first=first, plans=plans, effort=effort, gradients=gradients,
                offload=completing.OFFLOADS[offload], host_budget=host_budget,
            )  # fmt: skip
    document: dict[str, Any] = found.to_json()
    if largest is not None:
        document |= largest.to_json()

    def view() -> list[Any]:
        parts: list[Any] = [estimate_table(found), "", modules_table(found), "", found.sentence]
        if largest is not None and budget is not None:
            parts += ["", batches_table(largest.rows, budget), "", largest.sentence, *([words] if words else [])]
        return [*parts, f"assumed: {found.assumed}", *found.notes]

    return Answer(document, view)


def _budget(device: str | None, target: str | None) -> tuple[int | None, str | None]:
    """(bytes of the device, the target): a device's name stands for both."""
    if device is None:
        return None, target
    if devices.is_known(device):
        return devices.get(device).memory_bytes, target or device
    choices = f"give a size such as 24GiB, or one of {', '.join(devices.names())}"
    try:
        budget = Goal.parse(device).budget
    except UsageError:
        raise UsageError(f"--device {value(device)} is no size of a device and no known name; {choices}") from None
    if budget is None:
        raise UsageError(f"--device {device} is a fraction; {choices}")
    return budget, target


def _loaded(spec: str, batch: int | None) -> tuple[Any, Any, Callable[[int], Any], str]:
    """(model, sample, function from a batch to its sample, how the batch is changed where that is not plain).

    A model of the zoo is made of fake tensors, which take no memory.
    """
    if spec.startswith("zoo:"):
        from .. import zoo
        from ..torch.private import FakeTensorMode

        mode, name = FakeTensorMode(), spec.removeprefix("zoo:")
        with mode:
            made, sample = zoo.load(name, batch=batch)

        def of_zoo(n: int) -> Any:
            with mode:
                return zoo.load(name, batch=n)[1]

        return made, sample, of_zoo, ""
    made, sample = load_model(spec, None if batch is None or not takes_batch(spec) else batch)
    if takes_batch(spec):
        return made, sample, lambda n: load_model(spec, n)[1], ""
    from ..torch.estimate.largest import OtherBatches

    others = OtherBatches(sample)
    return made, sample if batch is None else others(batch), others, others.words
