"""Measures the ways to run one part that have no graph: steps of the part by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch.autograd.graph import saved_tensors_hooks

from ...errors import RekindleError
from ...parts.plan import SaveRule
from ...parts.ways import Figures, Way, best
from ..compiled.saving import Prices
from ..compiled.stage import Stage
from ..costs.operator_calls import FlopCount
from ..measure.as_before import as_before
from ..measure.memory import Levels
from ..offload.part_copies import SavedSizes, storages_of
from ..run.sample import copies, leaf_of, owned
from ..tensors import tree
from ..tensors.loss import default_loss
from ..tensors.op_tensors import storage_of
from ..trace import plain_forward
from .again import AgainForward
from .finding import Unit

RULES_MOST = 6  # rules that are measured; a guess


class TrialSteps:
    """Steps of one part by itself, from copies of the inputs of its recorded call.

    twins : the tensors of the copied call. args, kwargs : the copied call.
    """

    def __init__(self, unit: Unit, device: torch.device):
        self.module, self.given, self.device = unit.module, unit.given, device
        self.twins: list[torch.Tensor] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    @contextlib.contextmanager
    def ready(self) -> Iterator[Self]:
        """Inside, steps can be run; afterwards the module is as before."""
        module, call = self.module, self.given.call
        owning = module.owning(call.tensors) if isinstance(module, Stage) else contextlib.nullcontext()
        with owning, self.given.surroundings(module), as_before(module):
            for p in module.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            self.twins = copies(call.tensors, owned(module))
            self.args, self.kwargs = call.form.arguments(tree.unflatten(self.twins, call.spec))
            yield self

    def sizes_of(self, step: Callable[[Callable[[Any], None]], Any]) -> Figures:
        """Bytes that a step of the part takes. step : runs it, and hands its results over before backward begins."""
        levels, out_bytes = Levels(self.device), 0

        def between(result: Any) -> None:
            nonlocal out_bytes
            out_bytes = self._bytes_made(result)
            levels.mark("between")

        levels.measure(lambda: step(between))
        before, after = levels.found
        return Figures(max(0, before.level - out_bytes), before.peak, max(0, after.peak - out_bytes), 0.0)

    def saved(self, forward: Callable[..., Any]) -> list[tuple[int, int | None]]:
        """The storages that a forward of the part saves beside its parameters, in that order: (bytes, number of the input whose
        storage it is; None: of none) of each."""
        noted = SavedSizes(storages_of((*self.module.parameters(), *self.module.buffers())), self.device.type)
        given = {k: i for i, t in enumerate(tree.tensors_in((self.args, self.kwargs))) for k in storages_of([t])}
        with saved_tensors_hooks(noted.pack, noted.unpack):
            result = forward(*self.args, **self.kwargs)
        del result
        return [(size, given.get(storage)) for size, storage in noted.found]

    def seconds(self, runs: Sequence[Callable[[], Any]], rounds: int = 3, most_s: float = 0.5) -> list[float]:
        """Seconds of the fastest of a few runs of each, in turns. most_s : after it no further round begins; a guess."""
        taken, start = [float("inf") for _ in runs], time.perf_counter()
        for _ in range(rounds):
            for i, run in enumerate(runs):
                self.clear()
                self.wait()
                begin = time.perf_counter()
                result = run()
                self.wait()
                taken[i] = min(taken[i], time.perf_counter() - begin)
                del result
            if time.perf_counter() - start > most_s:
                break
        return taken

    def forward_seconds(self, forward: Callable[..., Any]) -> float:
        """Seconds of a forward."""
        return self.seconds([lambda: forward(*self.args, **self.kwargs)])[0]

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The inputs that get gradients and are no parameters of the part."""
        own = {id(p) for p in self.module.parameters()}
        return [leaf_of(t) for t in self.twins if t.requires_grad and id(t) not in own]

    def clear(self) -> None:
        """Forget the gradients of earlier steps."""
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad.zero_()
        for t in self.leaves:
            t.grad = None

    def _bytes_made(self, result: Any) -> int:
        """Bytes of the storages in a result of the part that are none of its inputs'."""
        given = {id(storage_of(t)) for t in self.twins}
        made = {id(s): s.nbytes() for t in tree.tensors_in(result) if (s := storage_of(t)) is not None}
        return sum(n for k, n in made.items() if k not in given)

    def wait(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def again_ways(unit: Unit, device: torch.device, cost: str) -> list[Way]:
    """The ways of a part that cannot be captured: left open; running again; and running again but for what a rule saves.

    Steps are timed or counted. Backward costs less than twice the forward where parameters are frozen, so no such estimate
    serves.
    """
    with _Trial(unit, device, cost).ready() as trial:
        plain = trial.cost(lambda: default_loss(trial.plain()).backward())
        found = [Way(None, trial.figures(None, plain), again=True)]
        for rule in trial.rules():
            with contextlib.suppress(RekindleError, RuntimeError):  # it writes to a result that would be saved
                found.append(Way(None, trial.figures(rule, plain), again=True, rule=rule))
    return [Way(None, Figures(0, 0, 0, 0.0, plain)), *best(found)]


class _Trial(TrialSteps):
    """Steps of a part that is left open, or runs again in backward. unit_of_cost : "seconds", "flops" or "unit"."""

    def __init__(self, unit: Unit, device: torch.device, unit_of_cost: str):
        super().__init__(unit, device)
        self._unit = unit_of_cost

    def plain(self) -> Any:
        """The plain forward."""
        return plain_forward(self.module)(*self.args, **self.kwargs)

    def rules(self) -> list[SaveRule]:
        """Rules between saving all dear results and saving the dearest alone."""
        with torch.no_grad(), Prices() as seen:
            self.plain()
        prices = sorted(seen.found - {0.0})
        n = min(len(prices), RULES_MOST)
        return [SaveRule(prices[round(i * (len(prices) - 1) / max(1, n - 1))]) for i in range(n)]

    def figures(self, rule: SaveRule | None, plain: float) -> Figures:
        """The figures of the part where it runs again by this rule. plain : cost of the plain step."""
        forward = AgainForward(self.module, rule)

        def step(between: Callable[[Any], None]) -> None:
            result = forward(*self.args, **self.kwargs)
            between(result)
            default_loss(result).backward()

        sizes = self.sizes_of(step)
        extra = self.cost(self.plain) if rule is None else max(0.0, self.cost(lambda: step(lambda _: None)) - plain)
        return replace(sizes, extra=extra, plain=plain)

    def cost(self, run: Callable[[], Any]) -> float:
        """The cost of the code: FLOPs, operators, or seconds of the fastest of a few runs."""
        if self._unit != "seconds":
            with FlopCount() as count:
                run()
            return float(count.total if self._unit == "flops" else count.ops)
        return self.seconds([run])[0]
