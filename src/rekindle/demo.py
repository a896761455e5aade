"""The demo: plans two models, trains them with and without the plan on the CPU, compares bits and memory, draws pictures."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from .model.files import write_text
from .saying.progress import announce, telling
from .saying.sizes import format_bytes
from .show import text
from .show.timeline import memory_timeline

if TYPE_CHECKING:
    from torch import Tensor, nn


class Training(NamedTuple):
    """One model of the demo.

    timed_steps : steps whose seconds count; one more runs before them.
    """

    name: str
    batch: int
    options: dict[str, Any]
    timed_steps: int


BUDGET_SHARE = 0.5  # of the plain step's activation peak
LEARNING_RATE = 1e-3  # of SGD
SEARCH_MOST_S, QUICK_SEARCH_MOST_S = 15.0, 5.0  # for each plan; guesses
MODELS = (Training("gpt", 8, {"dropout": 0.1}, 5), Training("resnet50", 4, {"input_grad": False}, 2))
QUICK_MODELS = (
    Training("gpt", 2, {"dropout": 0.1, "n_layer": 2}, 2),
    Training("resnet50", 4, {"input_grad": False, "image": 128}, 1),
)


def run(out_dir: str | Path = ".", console: Console | None = None, quick: bool = False) -> dict[str, Any]:
    """Plan a small GPT with dropout and a ResNet-50 at half their activation memory, and train both plain and planned.

    Prints tables and writes one timeline picture per model, `rekindle-demo-NAME.svg`, into out_dir.

    quick : take smaller models and fewer steps.
    Returns {"ok": every peak within its budget and every bit equal, "models": [...], "seconds": wall time}.
    """
    console = console or Console(highlight=False, markup=False)
    start = time.monotonic()
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    search_s = QUICK_SEARCH_MOST_S if quick else SEARCH_MOST_S
    names = " and ".join(m.name for m in (QUICK_MODELS if quick else MODELS))
    console.print(f"two models, {names}, each planned for half of its activations and trained plain and planned")
    rows = []
    for training in QUICK_MODELS if quick else MODELS:
        row = _train_both(training, search_s, folder, console)
        for part in ("", text.losses_table(row), "", text.demo_table(row), ""):
            console.print(part)
        console.print(f"timeline, before and after: {row['picture']}\n", style="bold", soft_wrap=True)
        rows.append(row)
    ok = all(row["ok"] for row in rows)
    return {"ok": ok, "models": rows, "seconds": time.monotonic() - start}


def _train_both(training: Training, search_s: float, folder: Path, console: Console) -> dict[str, Any]:
    """Plan one model, train it plain and planned, measure a step of each, and draw it: a row of the result."""
    name, batch, options, steps = training
    console.rule(name)
    with telling(None):
        announce(None, "importing torch")
        from . import api, zoo  # after the first lines, since it takes seconds
        from .torch.parts.verify import verify
        from .torch.trace import trace

        announce(None, f"making {name}")
        model, sample = zoo.load(name, batch=batch, **options)
    console.print(f"tracing {name} at batch {batch} and measuring its operators ...", style="dim")
    traced = trace(model, sample)
    console.print("searching for a plan ...", style="dim")
    plan = api.plan(traced, budget=BUDGET_SHARE, time_limit=search_s)
    console.print(plan.sentence)
    plain = copy.deepcopy(model)
    planned = api.apply(model, plan)
    console.print(f"training {steps + 1} steps plain and planned, in turns ...", style="dim")
    with telling(None):
        trained = _train(plain, planned, sample, steps)
    console.print("measuring one step of each, tensor by tensor ...", style="dim")
    with telling(None):
        announce(None, "measuring one step of each, tensor by tensor")
        check = verify(planned, sample, plan, count_flops=True)
    picture = folder / f"rekindle-demo-{name}.svg"
    budget = plan.limit
    assert budget is not None
    title = f"Memory of one training step: {name}, batch {batch}, within {format_bytes(budget)}"
    write_text(picture, memory_timeline(plan.graph, plan.schedule, budget=budget, title=title))
    allowed = plan.graph.beside_resident(budget)
    return {
        "model": name,
        "batch": batch,
        "ok": check.ok and trained["weights_equal"] and check.measured_peak_bytes <= allowed
        and trained["plain_losses"] == trained["planned_losses"],
        "modelled_plain_bytes": plan.baseline_activation_bytes,
        "plain_peak_bytes": check.plain_peak_bytes,
        "budget_bytes": allowed,
        "predicted_peak_bytes": check.predicted_peak_bytes,
        "measured_peak_bytes": check.measured_peak_bytes,
        "flops_overhead": plan.flops_overhead,
        "measured_flops_overhead": check.flops_overhead,
        "overhead": plan.overhead,
        "loss_equal": check.loss_equal,
        "gradients_equal": check.gradients_equal,
        "buffers_equal": check.buffers_equal,
        "rng_equal": check.rng_equal,
        "differences": list(check.differences),
        **trained,
        "solver": plan.solver,
        "status": plan.status,
        "solve_seconds": plan.solve_seconds,
        "picture": str(picture),
    }  # fmt: skip


def _train(plain: nn.Module, planned: nn.Module, sample: Any, steps: int) -> dict[str, Any]:
    """Train both by SGD from the same weights and random state. The first step warms up and is not timed."""
    import torch

    both = (plain, planned)
    optimizers = [torch.optim.SGD(m.parameters(), lr=LEARNING_RATE) for m in both]
    losses: tuple[list[float], list[float]] = ([], [])
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(steps + 1):
        for which in (
            (0, 1) if step % 2 == 0 else (1, 0)
        ):  # take turns, so that neither always runs on the warmer machine
            announce(None, f"training: step {step + 1} of {steps + 1}, {('plain', 'planned')[which]}")
            torch.manual_seed(step)
            start = time.perf_counter()
            loss = _loss(_call(both[which], sample))
            loss.backward()
            optimizers[which].step()
            optimizers[which].zero_grad()
            losses[which].append(loss.item())
            seconds[which].append(time.perf_counter() - start)
    plain_s, planned_s = (statistics.median(s[1:]) for s in seconds)
    states = plain.state_dict(), planned.state_dict()
    same = states[0].keys() == states[1].keys() and all(torch.equal(v, states[1][k]) for k, v in states[0].items())
    return {
        "plain_losses": losses[0],
        "planned_losses": losses[1],
        "weights_equal": same,
        "plain_seconds": plain_s,
        "planned_seconds": planned_s,
        "measured_overhead": planned_s / plain_s - 1,
    }


def _call(model: nn.Module, sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(*sample) if isinstance(sample, tuple) else model(sample)


def _loss(output: Any) -> Tensor:
    """The model's own loss where it returns one, or cross-entropy of its class scores against made-up labels."""
    import torch
    import torch.nn.functional as F

    if isinstance(output, Mapping):
        return output["loss"]
    return F.cross_entropy(output, torch.arange(len(output)) % output.shape[1])
