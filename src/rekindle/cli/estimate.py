"""The command `estimate`: will a model's training step fit a device, at which batch, without and with a plan?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from ..arguments import choice
from ..ask import EFFORTS, GRADIENTS, Goal
from ..errors import UsageError
from ..estimates.batches import BatchRow
from ..kernels import companion
from ..printed import value
from ..saying import notices
from ..saying.progress import announce, telling
from ..show.text import batches_table, estimate_table, modules_table
from ..torch.costs import devices
from .answer import Answer, Unbroken, out_console
from .models import load_model, usual_batch
from .options import OFFLOADS, Batch, HostBudget, Json, Model, Offload, OptimizerName, Target, among

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
            autocompletion=among(GRADIENTS),
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
    console = None if json else out_console()
    with telling(None):
        if budget is not None and plans:
            companion.start()  # the search is compiled while torch is imported and the plain step is estimated
        announce(None, f"loading {model}")
        made, sample, first, other, words = _loaded(model, batch)
        from ..torch.estimate.largest import FIRST, MOST_S, BatchSearch, search_options
        from ..torch.estimate.verbs import EstimateRequest

        request = EstimateRequest.of_user(made, steps, target, gradients=gradients or "fresh")
        found = request.of(sample)
        _show(console, estimate_table(found), "", modules_table(found), "", found.sentence)
        largest = None
        if budget is not None:
            options = search_options(budget, effort, OFFLOADS[offload], host_budget)
            rows = _Rows(console, budget)
            most_s = MOST_S if effort == "quick" else float("inf")
            search = BatchSearch(request, other, options, gradients or "kept", rows.add, most_s)
            search.known |= {first: found} if first else {}
            largest = search.largest(first or FIRST, plans)
            _show(console, "")
    document: dict[str, Any] = found.to_json()
    rest = [f"assumed: {found.assumed}", *found.notes]
    if largest is not None:
        document |= largest.to_json()
        rest = [largest.sentence, *([words] if words else []), *rest]
    return Answer(document, lambda: rest)


def _show(console: Console | None, *parts: Any) -> None:
    """Print parts of the answer that are known before the others, unless one document is asked for."""
    if console is not None:
        with contextlib.suppress(OSError, ValueError):
            notices.erase_line()
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Unbroken))


class _Rows:
    """Prints the table of batches row by row."""

    def __init__(self, console: Console | None, budget: int) -> None:
        self._console, self._budget = console, budget
        self._head = self._lines()
        _show(console, "", *self._head)

    def add(self, row: BatchRow) -> None:
        """Print a row."""
        _show(self._console, *self._lines(row)[len(self._head) :])

    def _lines(self, row: BatchRow | None = None) -> list[Unbroken]:
        console = self._console or out_console()
        with console.capture() as printed:
            console.print(batches_table(self._budget, row))
        return [Unbroken(line) for line in printed.get().splitlines()]


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


def _loaded(spec: str, batch: int | None) -> tuple[Any, Any, int, Callable[[int], Any], str]:
    """(model, sample, its batch or 0, function from a batch to its sample, how the batch is changed where that is not plain).

    A model of the zoo is made of fake tensors, which take no memory.
    """
    usual = usual_batch(spec)
    mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if spec.startswith("zoo:"):
        from ..torch.private import FakeTensorMode

        mode = FakeTensorMode()

    def load(n: int | None) -> tuple[Any, Any]:
        with mode:
            return load_model(spec, n)

    made, sample = load(None if usual is None else batch)
    if usual is not None:
        return made, sample, batch or usual, lambda n: load(n)[1], ""
    from ..torch.estimate.largest import OtherBatches

    others = OtherBatches(sample)
    return made, sample if batch is None else others(batch), batch or others.batch, others, others.words
