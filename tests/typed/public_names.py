"""A program that uses every public name as users do. It is never run: mypy --strict and pyright read it (`make types`)."""

from __future__ import annotations

import torch
from torch import nn

import rekindle

GIB = 2**30


def the_line(model: nn.Module, sample: torch.Tensor) -> nn.Module:
    planned: nn.Module = rekindle.checkpoint(model, sample, budget="8GiB", optimizer="adamw", parts=["blocks.*"])
    return rekindle.restore(planned)


def the_steps(model: nn.Module, sample: torch.Tensor) -> float:
    trace: rekindle.Trace = rekindle.trace(model, sample, target="h200")
    plan: rekindle.Plan = rekindle.plan(trace, max_overhead=0.1)
    front: list[rekindle.Plan] = rekindle.frontier(trace, effort="quick")
    applied: nn.Module = rekindle.apply(model, front[0], on_new_shape="error")
    check: rekindle.Check = rekindle.verify(applied, sample, plan)
    status: rekindle.Status = rekindle.status(applied)
    print(status, status.calls, [x.why for x in status.plain], status.to_json()["format"])
    plan.save("plan.json")
    loaded: rekindle.Plan | rekindle.PartsPlan = rekindle.load("plan.json")
    print(plan, plan.sentence, rekindle.cite(loaded), rekindle.__version__)
    return check.peak_error + plan.overhead + plan.peak_bytes / GIB


def without_torch() -> int:
    values = (rekindle.Value(16), rekindle.Value(8))
    ops = (rekindle.Op("a", (0,), (1,), 0.5),)
    graph = rekindle.Graph(values, ops, keep=(1,))
    schedule = rekindle.Schedule([rekindle.Run(0), rekindle.Free(1)], graph.hash)
    judged: rekindle.Simulation = rekindle.simulate(graph, schedule)
    linked = rekindle.Graph(values, ops, keep=(1,), link=rekindle.Link(50e9, 50e9, copy_s=1e-5))
    copied = rekindle.Schedule([rekindle.Run(0), rekindle.Offload(1), rekindle.Free(1), rekindle.Fetch(1)], linked.hash)
    planned: rekindle.Plan = rekindle.plan(linked, 0.5, offload=True, host_budget="1GiB")
    return judged.peak_bytes + rekindle.simulate(linked, copied).host_bytes + planned.moved_bytes


def will_it_fit(model: nn.Module, sample: torch.Tensor) -> int:
    estimate: rekindle.Estimate = rekindle.estimate(model, sample, optimizer="adamw")
    batch: rekindle.LargestBatch = rekindle.largest_batch(
        model, lambda n: torch.randn(n, 64), budget="24GiB", optimizer="adamw"
    )
    print(estimate)
    return int(batch)


def errors(model: nn.Module, sample: dict[str, torch.Tensor]) -> str:
    try:
        rekindle.checkpoint(model, sample, minimize="memory")
    except rekindle.InfeasibleBudget as e:
        return f"{e.smallest_peak} {e.bound_bytes} {e.op} {e.budget}"
    except rekindle.TraceError as e:
        return f"{e.line} {e.reason}"
    except (rekindle.UsageError, rekindle.PlanMismatch, rekindle.ParityError, rekindle.FormatError) as e:
        return str(e)
    except rekindle.RekindleError as e:
        raise rekindle.RekindleWarning(str(e)) from e
    return ""


def from_the_zoo() -> list[str]:
    model, sample = rekindle.zoo.load("resnet50", batch=64)
    the_line(model, sample)
    return rekindle.zoo.names()
