"""One model's step, plain, planned and checkpointed by hand: predicted against measured peak, seconds, parity."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rekindle
from gpu.cases import Case, held_bytes, with_gradients
from gpu.devices import Device, get
from gpu.parity import differences
from gpu.turns import GPU, KERNELS, passed, turn
from rekindle import Plan, Trace
from rekindle.bench.checkpointing import by_hand
from rekindle.torch.costs.devices import closest

Row = dict[str, Any]
Emit = Callable[[Row], None]
Way = Callable[[], AbstractContextManager[Any]]
GOALS: dict[str, dict[str, float]] = {"half": {"budget": 0.5}, "third": {"max_overhead": 1 / 3}}
ROUNDS, ROUNDS_SECONDS = 7, 3.0  # timed rounds; after so many seconds no further one begins, but three there are


def measure(case: Case, kind: str, work: Path, solve_seconds: float, emit: Emit) -> None:
    """The rows of one model. What needs no device (capture, planning) runs while others have their turn there."""
    device = get(kind)
    model, sample = case.load(kind)
    with_gradients(model)
    step, held = case.step(model, sample, kind), held_bytes(model, sample)
    begin = time.perf_counter()
    with case.context(kind):  # for the capture a roofline will do: nothing runs
        traced = rekindle.trace(model, sample, target=closest(torch.device(kind)).name)
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
    for name, goal in GOALS.items():
        rows[name] = known | {"method": name, "goal": goal} | _plan(model, traced, goal, solve_seconds, name, ways)
        emit(rows[name])
    planned = [name for name in GOALS if name in ways]
    with turn(work / GPU):
        held_by(planned)
        for name in planned:
            rows[name] |= _checked(model, step, ways[name])
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
    """What a step holds, after one that warms up."""
    try:
        with way() as found:
            if found == 0:
                return {"status": "no blocks", "note": "no blocks are known of this model"}
            step()
            return {"status": "ok", "note": ""} | asdict(device.memory(step, held))
    except Exception as e:  # an out-of-memory, or a kernel that this device has not
        return {"status": "failed", "note": why(e)}


def _plan(
    model: nn.Module, traced: Trace, goal: dict[str, Any], solve_seconds: float, name: str, ways: dict[str, Way]
) -> Row:
    """What a plan promises; it is put among the ways."""
    try:
        plan = rekindle.plan(traced, **goal, time_limit=solve_seconds)
        ways[name] = by_plan(model, plan)
    except rekindle.InfeasibleBudget as e:  # no failure: half the memory may be less than one operator takes
        return {"status": "infeasible", "note": why(e)}
    except Exception as e:
        return {"status": "failed", "note": why(e)}
    return {"status": "planned", "note": ""} | _promised(plan)


def _promised(plan: Plan) -> Row:
    return {
        "predicted_peak_bytes": plan.activation_peak_bytes, "predicted_seconds": plan.seconds,
        "predicted_overhead": plan.overhead, "flops_overhead": plan.flops_overhead, "solver": plan.solver,
        "plan_status": plan.status, "gap": plan.gap, "solve_seconds": plan.solve_seconds,
    }  # fmt: skip


def by_plan(model: nn.Module, plan: Plan) -> Way:
    """Within it the model trains by the plan."""
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


def _checked(model: nn.Module, step: Callable[[], torch.Tensor], way: Way) -> Row:
    try:
        found = differences(model, step, way)
    except Exception as e:
        return {"parity": None, "note": f"parity: {why(e)}"}
    note = f"{len(found)} tensors differ from the plain step's, first {found[0]}" if found else ""
    return {"parity": not found, "note": note}


def _clock(device: Device, step: Callable[[], Any], ways: dict[str, Way]) -> dict[str, list[float]]:
    """Seconds of steps that take turns, in changing order, so that nobody always runs after the same one."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    orders = itertools.cycle(itertools.permutations(ways))
    begin = time.perf_counter()
    for turns in range(ROUNDS + 1):
        if turns > 3 and time.perf_counter() - begin > ROUNDS_SECONDS:
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
