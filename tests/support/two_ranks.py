"""The work of each of two processes in tests of `rekindle.torch.tensors.ranks`; each writes down what it saw, as JSON."""

from __future__ import annotations

import copy
import functools
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rekindle
from asked import searches
from models_in_parts import RoutedGPT, differing, train, words
from processes import error_of
from rekindle.model.formats import steps_to_json
from rekindle.planning import certify
from rekindle.torch import trace
from rekindle.torch.parts import planning
from rekindle.torch.parts.applied import PartForward
from rekindle.torch.private import store_of_processes
from rekindle.torch.tensors import ranks

SOLVER = "exact"  # least cost within a budget, so that costs decide
REMOTE, ALONE = 1, 1  # ranks: that meets failures; that plans alone


class Net(nn.Module):
    """Two branches of the same sizes: within a small budget the cheaper one is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.a(x).tanh() * self.b(x).sigmoid()).sum()


def sample() -> torch.Tensor:
    return torch.ones(64, 8)


def with_costs_of(rank: int, traced: Any) -> Any:
    """Rank 0 believes that tanh is dear, rank 1 that sigmoid is."""
    dear = ("tanh", "sigmoid")[rank]
    ops = tuple(replace(o, seconds=1.0 if dear in o.target else 0.01) for o in traced.graph.ops)
    return traced.with_graph(replace(traced.graph, ops=ops))


def described(plan: Any) -> dict[str, Any]:
    return {
        "steps": steps_to_json(plan.schedule), "peak_bytes": plan.peak_bytes, "overhead": plan.overhead,
        "bound_bytes": plan.bound_bytes, "status": plan.status, "dear": dear(plan.graph), "traced": dear(plan.trace.graph),
    }  # fmt: skip


def dear(graph: Any) -> list[str]:
    return sorted({o.target for o in graph.ops if o.seconds == 1.0})


def one_plan(rank: int, traced: Any) -> dict[str, Any]:
    """Both ask at about the same time, with costs that differ."""
    mine = with_costs_of(rank, traced)
    alone = rekindle.plan(mine.graph, 0.7, solver=SOLVER, cache=False)
    with searches(SOLVER) as asked:
        plan = rekindle.plan(mine, 0.7, solver=SOLVER, cache=False)
    model = rekindle.apply(Net(), plan)
    model(sample()).backward()
    return {"plan": described(plan), "alone": steps_to_json(alone.schedule), "searches": len(asked),
            "steps": model.forward.plan is plan}  # fmt: skip


def refused(rank: int, traced: Any) -> dict[str, Any]:
    mine = with_costs_of(rank, traced)
    return error_of(lambda: rekindle.plan(mine, mine.graph.resident_bytes + 1, solver=SOLVER))


def alone(rank: int, traced: Any) -> dict[str, Any]:
    """One rank asks, and nobody else does; the others ask when it is done."""
    mine = with_costs_of(rank, traced)
    plan = None
    with searches(SOLVER) as asked:
        if rank == ALONE:
            plan = rekindle.plan(mine, 0.8, solver=SOLVER, cache=False)
        dist.barrier()
        if rank != ALONE:
            plan = rekindle.plan(mine, 0.8, solver=SOLVER, cache=False)
        again = rekindle.plan(mine, 0.8, solver=SOLVER, cache=False)
    return {"plan": described(plan), "again": described(again), "searches": len(asked)}


def targets(rank: int, traced: Any) -> dict[str, Any]:
    """Costs of two devices are two questions."""
    return {t: rekindle.plan(traced, 0.75, solver=SOLVER, target=t, cache=False).seconds for t in ("h200", "a100")}


def costs(rank: int, traced: Any) -> dict[str, Any]:
    """Only one rank measures."""
    asked = []
    real = trace.node_costs

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return real(*args, **kwargs)

    trace.node_costs = noted
    try:
        graph = rekindle.trace(Net(), sample()).graph
    finally:
        trace.node_costs = real
    return {"measured": len(asked), "costs": [[o.seconds, o.flops, o.workspace] for o in graph.ops]}


def number(question: dict[str, Any], make: Callable[[], int], **more: Any) -> Any:
    """A number, wherever it is made: [the number, whether it was received]."""
    found = ranks.once("the number", question, make, lambda x: x, **more)
    return [found.answer, True] if isinstance(found, ranks.Received) else [found, False]


def failure(rank: int, traced: Any) -> dict[str, Any]:
    """The rank that answers fails while another waits; then the other one answers."""
    store = store_of_processes()
    ask = functools.partial(number, {})

    def fail() -> int:
        store.set("fail", "begun")
        store.wait(["waits"])
        time.sleep(0.2)  # the other one is at its first look by then
        raise ZeroDivisionError("no such number")

    if rank != REMOTE:
        met = error_of(lambda: ask(fail))
    else:
        store.wait(["fail"])
        store.set("waits", "yes")
        met = error_of(lambda: ask(lambda: 1))
    dist.barrier()
    return {"met": met, "later": ask(lambda: 100 + rank)}


def too_long(rank: int, traced: Any) -> dict[str, Any]:
    """The rank that answers takes longer than the other one waits."""
    store, news = store_of_processes(), []
    ask = functools.partial(number, {"too": "long"}, progress=news.append)

    def slow() -> int:
        store.set("slow", "begun")
        store.wait(["gave up"])
        return 7

    if rank != REMOTE:
        return {"met": ask(slow)}
    store.wait(["slow"])
    wait_most_s, news_s = ranks.WAIT_MOST_S, ranks.NEWS_S
    ranks.WAIT_MOST_S, ranks.NEWS_S = 0.5, 0.1
    met = error_of(lambda: ask(lambda: 1))
    ranks.WAIT_MOST_S, ranks.NEWS_S = wait_most_s, news_s
    store.set("gave up", "yes")
    return {"met": met, "news": news, "later": ask(lambda: 1)}


def trained(rank: int, traced: Any) -> dict[str, Any]:
    """`checkpoint` and a data-parallel step, as a script does it."""
    torch.manual_seed(0)
    model = Net()
    plain = nn.parallel.DistributedDataParallel(Net())
    plain.module.load_state_dict(model.state_dict())
    planned = nn.parallel.DistributedDataParallel(rekindle.checkpoint(model, sample(), 0.9, solver=SOLVER))
    for net in (plain, planned):
        net(sample() * (rank + 1)).backward()
    same = [torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), planned.parameters(), strict=True)]
    return {"plan": steps_to_json(planned.module.forward.plan.schedule), "same": all(same), "parameters": len(same)}


def planned_parts(model: nn.Module, **goal: Any) -> dict[str, Any]:
    """Plans of a model's parts as this rank got them: figures, whether it planned itself, its warnings, how a step differs."""
    torch.manual_seed(0)
    made: list[Any] = []
    real = planning.plan_parts

    def noted(request: Any) -> Any:
        made.append(request)
        return real(request)

    planning.plan_parts = noted
    sample, twin = (words(),), copy.deepcopy(model)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            rekindle.checkpoint(model, sample, effort="quick", cost="flops", progress=False, **goal)
    finally:
        planning.plan_parts = real
    bound = [f for m in model.modules() if isinstance(f := m.__dict__.get("forward"), PartForward)]
    return {
        "plan": model.forward.plan.to_json(), "made": len(made), "bound": all(list(f.bounds) for f in bound),
        "warned": [str(w.message) for w in told if issubclass(w.category, rekindle.RekindleWarning)],
        "differing": differing(train(model, sample, 1), train(twin, sample, 1)),
    }  # fmt: skip


def parts(rank: int, traced: Any) -> dict[str, Any]:
    """Both plan the parts of a model that cannot be captured whole."""
    return planned_parts(RoutedGPT(1, 32).train(), budget=0.9)


def other_parts(rank: int, traced: Any) -> dict[str, Any]:
    """The model of one rank notes its calls, so that its experts cannot run again as the other rank's do."""
    found: dict[str, Any] = {}
    for turn in (0, 1):
        if rank == turn:
            found = planned_parts(RoutedGPT(1, 32, notes=rank == REMOTE).train(), minimize="memory")
        dist.barrier()
    return found


SCENES = (one_plan, refused, alone, targets, costs, failure, too_long, trained, parts, other_parts)


def work(rank: int, port: int, folder: str) -> None:
    """All scenes, one after the other; the file RANK.json says what this rank saw."""
    os.environ["REKINDLE_CACHE"] = str(Path(folder) / f"cache{rank}")  # or the disk would make the plans equal
    certify.SETTINGS = replace(certify.SETTINGS, thorough_s=0.02, brief_s=0.01, longer_sets=2_000)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    traced = rekindle.trace(Net(), sample(), target="h200")
    seen = {}
    for scene in SCENES:
        dist.barrier()
        seen[scene.__name__] = scene(rank, traced)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
