"""One model's step, plain, planned and checkpointed by hand: predicted against measured peak, seconds, parity."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from comparators.checkpointing import per_block, sequential
from torch import nn

import rekindle
from gpu.cases import Case, held_bytes, with_gradients
from gpu.devices import Device, get
from gpu.turns import GPU, KERNELS, passed, turn
from rekindle import Plan
from rekindle.bench.methods import NotApplicable
from rekindle.torch.compiled.cuts import find_blocks
from rekindle.torch.costs.devices import closest

Row = dict[str, Any]
Emit = Callable[[Row], None]
Way = Callable[[], AbstractContextManager[Any]]
GOALS: dict[str, dict[str, Any]] = {
    "half": {"budget": 0.5}, "copied": {"budget": 0.5, "offload": True}, "third": {"max_overhead": 1 / 3},
    "close": {"max_overhead": 1 / 3, "parity": "close"}
}  # fmt: skip


@dataclass(frozen=True)
class ClockSettings:
    """How often steps are timed. All figures are guesses that gave stable medians on an H100.

    rounds : timed rounds of all ways, after one that warms up.
    rounds_s : after this time no further round begins.
    rounds_least : rounds that are timed however long they take.
    """

    rounds: int = 7
    rounds_s: float = 3.0
    rounds_least: int = 3


SETTINGS = ClockSettings()


def by_hand(model: nn.Module, step: Callable[[], Any]) -> AbstractContextManager[None]:
    """`torch.utils.checkpoint` around each block if the model has blocks, else around √n segments."""
    return per_block(model) if find_blocks(model) else sequential(model, step)


def measure(case: Case, kind: str, work: Path, solve_seconds: float, emit: Emit) -> None:
    """Emit the rows of one model. Capture and planning run while other jobs use the device: they only try, for moments, whether
    slices of an op keep its bits there."""
    device = get(kind)
    model, sample = case.load(kind)
    with_gradients(model)
    step, held = case.step(model, sample, kind), held_bytes(model, sample)
    begin = time.perf_counter()
    with case.context(kind):  # for the capture a roofline will do: nothing runs
        traced = rekindle.trace(model, sample, target=closest(torch.device(kind)).name, unused=case.unused)
    known = {
        "part": "steps", "model": case.name, "batch": case.batch, "unit": case.unit,
        "precision": "bf16 autocast" if case.autocast else "float32", "ops": len(traced.graph.ops),
        "held_bytes": held, "input_bytes": _input_bytes(sample), "trace_seconds": time.perf_counter() - begin,
    }  # fmt: skip
    ways: dict[str, Way] = {"plain": nullcontext, "blocks": lambda: by_hand(model, step)}
    rows: dict[str, Row] = {name: known | {"method": name} for name in ways}

    def held_by(names: list[str]) -> None:
        for name in names:
            rows[name] |= _memory(device, step, ways[name], held)
            emit(rows[name])

    with turn(work / GPU):
        begin = time.perf_counter()
        traced = traced.costed()
        known["cost_seconds"] = time.perf_counter() - begin
        held_by(["plain", "blocks"])
        device.release()
    passed(work / KERNELS)
    rows["plain"] |= _promised(rekindle.plan(traced, 1.0, solver="none"))
    plans: dict[str, Plan] = {}
    goals = {name: goal for name, goal in GOALS.items() if name not in ("close", "copied") or getattr(case, name)}
    for name, goal in goals.items():
        rows[name] = known | {"method": name, "goal": goal}
        try:
            plans[name] = rekindle.plan(traced, **goal, time_limit=solve_seconds)
            ways[name] = by_plan(model, plans[name])
            rows[name] |= {"status": "planned", "note": ""} | _promised(plans[name])
        except rekindle.InfeasibleBudget as e:  # no failure: half the memory may be less than one operator takes
            rows[name] |= {"status": "infeasible", "note": why(e)}
        except Exception as e:
            rows[name] |= {"status": "failed", "note": why(e)}
        emit(rows[name])
    planned = [name for name in goals if name in ways]
    with turn(work / GPU):
        held_by(planned)
        for name in planned:
            rows[name] |= _parity(case, model, sample, plans[name], kind)
        for name, seconds in _clock(device, step, {n: w for n, w in ways.items() if _ok(rows[n])}).items():
            rows[name] |= {"seconds": statistics.median(seconds), "seconds_each": seconds}
        plain = rows["plain"].get("seconds")
        for row in rows.values():
            row["ratio"] = row["seconds"] / plain if plain and "seconds" in row else None
            emit(row)
        device.release()


def _ok(row: Row) -> bool:
    return bool(row["status"] == "ok")


def _memory(device: Device, step: Callable[[], Any], way: Way, held: int) -> Row:
    """The memory of a step, after one step of warm-up."""
    try:
        with way():
            step()
            return {"status": "ok", "note": ""} | asdict(device.memory(step, held))
    except NotApplicable as e:
        return {"status": "does not apply", "note": str(e)}
    except Exception as e:  # an out-of-memory, or a kernel that this device lacks
        return {"status": "failed", "note": why(e)}


def _promised(plan: Plan) -> Row:
    return {
        "predicted_peak_bytes": plan.activation_peak_bytes, "predicted_seconds": plan.seconds,
        "predicted_overhead": plan.overhead, "flops_overhead": plan.flops_overhead, "solver": plan.solver,
        "plan_status": plan.status, "gap": plan.gap, "solve_seconds": plan.solve_seconds,
        "moved_bytes": plan.moved_bytes, "rewrites": 0 if plan.rewriting is None else len(plan.rewriting.steps),
    }  # fmt: skip


def by_plan(model: nn.Module, plan: Plan) -> Way:
    """A context in which the model trains by the plan."""
    forward: Any = rekindle.apply(model, plan, on_new_shape="error").forward
    rekindle.restore(model)

    @contextmanager
    def way() -> Iterator[None]:
        forward.take_over(model)
        try:
            yield
        finally:
            rekindle.restore(model)

    return way


def _parity(case: Case, model: nn.Module, sample: Any, plan: Plan, kind: str) -> Row:
    """Whether a planned step leaves the same bits as a plain one, by `rekindle.verify`; where sums may round, how far they are
    from the plain step's, relative to the largest element.

    On CUDA the jobs set CUBLAS_WORKSPACE_CONFIG, without which cuBLAS may give other bits in every run.
    """
    try:
        with case.context(kind):
            found = rekindle.verify(model, sample, plan)
    except Exception as e:
        return {"parity": None, "note": f"parity: {why(e)}"}
    if found.ok and found.varying:
        return {"parity": None, "note": f"parity: {found.varying_words}"}
    note = "" if found.ok else f"{len(found.differences)} differences from the plain step, first {found.differences[0]}"
    return {"parity": found.ok, "note": note, "largest_difference": found.largest_difference}


def _clock(device: Device, step: Callable[[], Any], ways: dict[str, Way]) -> dict[str, list[float]]:
    """Seconds of steps in turns, in changing order, so that no way always runs after the same other way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    orders = itertools.cycle(itertools.permutations(ways))
    begin = time.perf_counter()
    for turns in range(SETTINGS.rounds + 1):
        if turns > SETTINGS.rounds_least and time.perf_counter() - begin > SETTINGS.rounds_s:
            break
        for name in next(orders):
            with ways[name]():
                taken[name].append(device.seconds(step))
    return {name: seconds[1:] for name, seconds in taken.items()}  # the first round warms up


def _input_bytes(sample: Any) -> int:
    leaves = torch.utils._pytree.tree_leaves(sample)
    return sum(t.untyped_storage().nbytes() for t in leaves if isinstance(t, torch.Tensor))


def why(e: BaseException) -> str:
    """An error in one line."""
    return f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"
