"""Parameters that are written to inside backward, as by an optimizer that steps there, or between forward and backward."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import rekindle
from marks import every, sweep
from rekindle import Plan, RekindleError, Schedule, Trace
from rekindle.torch.run.stages import LastReads

STEP = 0.5  # times the gradient: a read after the write shows in all digits


class Tied(nn.Module):
    """The table of an embedding is the weight of the head, or its memory is the weight's, transposed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, 12), nn.GELU())
        self.encode, self.decode = nn.Linear(20, 12, bias=False), nn.Linear(12, 20, bias=False)
        self.decode.weight = nn.Parameter(self.encode.weight.data.t())
        if how == "one parameter":
            self.decode.weight = self.encode.weight
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(functional.gelu(self.encode(x)))
        return h @ self.encode.weight if self.how == "one parameter" else self.decode(h)


class Again(nn.Module):
    """One layer that runs several times, with a scale that reads its own gradient's neighbours late."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.layer, self.norm, self.scale = nn.Linear(12, 12), nn.LayerNorm(12), nn.Parameter(torch.rand(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x * self.scale.sigmoid() + functional.gelu(self.norm(self.layer(x))) * self.scale
        return x


class Late(nn.Module):
    """Its first layer reads the weight whose gradient the last layer makes, and only to recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12) / 4)
        self.inner = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(functional.gelu(x @ self.weight.detach())) @ self.weight


class Slices(nn.Module):
    """Layers whose weights are views of one parameter, or parameters that are slices of one buffer."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        flat = torch.randn(3 * 144) / 4
        self.flat = nn.Parameter(flat) if one else None
        slices = [] if one else [nn.Parameter(torch.empty(0)) for _ in range(3)]
        self.slices = nn.ParameterList(slices)
        for p, part in zip(slices, flat.split(144), strict=False):
            p.data = part.view(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = [*self.slices] if self.flat is None else [w.view(12, 12) for w in self.flat.split(144)]
        for w in weights:
            x = torch.tanh(x @ w) + x
        return x


def mlp() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)) for _ in range(3)))


def convolutions() -> nn.Module:
    layers = [(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.SiLU()) for _ in range(3)]
    return nn.Sequential(nn.Unflatten(1, (3, 2, 2)), *(m for layer in layers for m in layer))


def parametrized() -> nn.Module:
    norm, other = parametrizations.weight_norm, parametrizations.spectral_norm
    return nn.Sequential(
        norm(nn.Linear(12, 16)), nn.GELU(), other(nn.Linear(16, 12)), nn.Tanh(), norm(nn.Linear(12, 12))
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "convolutions": convolutions, "parametrized": parametrized, "twice": lambda: Again(2),
    "nine times": lambda: Again(9), "one parameter": lambda: Tied("one parameter"), "one memory": lambda: Tied("memory"),
    "views of a parameter": lambda: Slices(True), "slices of a buffer": lambda: Slices(False),
    "late": Late,
}  # fmt: skip


def in_place(p: Any) -> None:
    with torch.no_grad():
        p.sub_(STEP * p.grad)


def by_data(p: Any) -> None:
    p.data.sub_(STEP * p.grad)


def new_data(p: Any) -> None:
    p.data = p.data - STEP * p.grad


def stepping(model: nn.Module, write: Callable[[Any], None]) -> nn.Module:
    """The model, which writes each parameter inside backward, as soon as its gradient is there."""

    def step(p: Any) -> None:
        write(p)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    return model


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Losses and parameters of two steps."""
    losses = []
    for i in range(2):
        torch.manual_seed(i)
        losses.append(loss := model(x).square().mean())
        loss.backward()
    return [*losses, *model.parameters(), *model.buffers()]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@functools.cache
def parametrized_once() -> nn.Module:
    return parametrized()


def fresh(name: str) -> nn.Module:
    """The same each time. Copies of tensors that share memory do not share it; a parametrized module has its own class."""
    torch.manual_seed(3)
    return copy.deepcopy(parametrized_once()) if name == "parametrized" else MODELS[name]()


def traced(name: str) -> tuple[torch.Tensor, Trace]:
    model = fresh(name)
    x = torch.randn(6, 20 if isinstance(model, Tied) else 12)
    return x, rekindle.trace(model, x, target="h200")


def early(traced: Trace) -> Schedule:
    """A schedule that hands each gradient over as early as it can, and makes those of parameters before those of results."""
    graph, first = traced.graph, []
    runs = rekindle.plan(traced, minimize="memory", solver="every").schedule.runs
    handed = {o: op.inputs for o, op in enumerate(graph.ops) if op.kind == "accumulate"}
    makers = {o for o, op in enumerate(graph.ops) if any({*op.outputs} & {*v} for v in handed.values())}
    assert graph.boundary is not None
    at = runs.index(graph.boundary) + 1
    made = {v for o in runs[:at] for v in graph.ops[o].outputs} | {
        v for v, o in enumerate(graph.arrays.producer) if o < 0
    }
    left = runs[at:]
    while left:
        ready = [i for i, o in enumerate(left) if made.issuperset(graph.ops[o].inputs)]
        i = next((i for i in ready if left[i] in handed or left[i] in makers), 0)
        made |= {*graph.ops[left[i]].outputs}
        first.append(left.pop(i))
    return Schedule.from_runs(graph, [*runs[:at], *first], "early")


def _makers(graph: rekindle.Graph, op: int) -> list[int]:
    """The ops that make what this op reads."""
    return [int(graph.arrays.producer[v]) for v in graph.ops[op].inputs if graph.arrays.producer[v] >= 0]


@pytest.mark.parametrize("write", [in_place, by_data, new_data])
@pytest.mark.parametrize("name", every(6, MODELS))
def test_an_optimizer_that_steps_inside_backward(name: str, write: Callable[[Any], None]) -> None:
    x, found = traced(name)
    expected = trained(stepping(fresh(name), write), x)
    for plan in (rekindle.plan(found, minimize="memory", solver=s) for s in ("none", "every", "chen-sqrt")):
        planned = rekindle.apply(fresh(name), plan)
        assert same(trained(stepping(planned, write), x), expected), plan.solver
        assert all(b.uses == 2 for b in planned.forward.bounds)  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("name", every(3, ["mlp", "convolutions", "one parameter", "one memory", "late"]))
def test_a_schedule_that_hands_gradients_over_too_early(name: str) -> None:
    """Files of earlier versions hold such schedules."""
    x, found = traced(name)
    schedule = early(found)
    assert LastReads(found.lowered).heeded(found.graph, schedule) != schedule
    plan = replace(rekindle.plan(found, minimize="memory", solver="every"), schedule=schedule, trace=None)
    expected = trained(stepping(fresh(name), in_place), x)
    planned = rekindle.apply(fresh(name), plan)
    assert same(trained(stepping(planned, in_place), x), expected)


def test_gradients_that_wait_count() -> None:
    """A judge that did not see them would promise less than the step takes."""
    x = torch.randn(2, 12)
    found = rekindle.trace(fresh("late"), x, target="h200")
    graph, runs = found.graph, Schedule.baseline(found.graph).runs
    at = next(i for i, o in enumerate(runs) if graph.ops[o].backward and 1 in map(runs.index, _makers(graph, o)))
    again = Schedule.from_runs(graph, [*runs[:at], *runs[:2], *runs[at:]], "again")  # the first layer, from the weight
    waiting = LastReads(found.lowered).heeded(graph, again)
    peaks = [rekindle.simulate(graph, s).peak_bytes for s in (again, waiting)]
    assert peaks[0] < peaks[1]
    plan = replace(rekindle.plan(found, minimize="memory", solver="none"), schedule=waiting)
    expected = trained(stepping(fresh("late"), in_place), x)
    assert same(trained(stepping(rekindle.apply(fresh("late"), plan), in_place), x), expected)


def test_slices_of_a_buffer_do_not_wait_for_each_other() -> None:
    _, found = traced("slices of a buffer")
    schedule = rekindle.plan(found, minimize="memory", solver="none").schedule
    handed = [i for i, o in enumerate(schedule.runs) if found.graph.ops[o].kind == "accumulate"]
    assert len(handed) == 3
    assert handed[0] < handed[-1] - 3
    with_both = LastReads(traced("one memory")[1].lowered)
    alone = LastReads(found.lowered)
    assert max(map(len, with_both._readers.values())) > max(map(len, alone._readers.values()))


def test_parts_that_share_a_parameter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12), nn.GELU()) for _ in range(3))
    )
    model[2][0].weight, model[1][2].weight = model[0][0].weight, model[0][2].weight
    x = torch.randn(64, 12)
    planned = rekindle.checkpoint(copy.deepcopy(model), x, parts="*", minimize="memory", progress=False)
    expected = trained(stepping(model, in_place), x)
    assert same(trained(stepping(planned, in_place), x), expected)


@sweep
def test_parts_with_parameters_of_one_memory() -> None:
    """The last part's gradient comes first; then the first part runs again, and reads that memory."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        block = [nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 12), nn.GELU()]
        model = nn.Sequential(nn.Sequential(*block), copy.deepcopy(nn.Sequential(*block)))
        model[1][4].weight.data = model[0][0].weight.data.t()
        return model

    x = torch.randn(64, 12)
    planned: Any = rekindle.checkpoint(made(), x, parts="*", minimize="memory", progress=False)
    assert len(planned.forward.plan.parts) == 2
    expected = trained(stepping(made(), in_place), x)
    assert same(trained(stepping(planned, in_place), x), expected)


# -- between forward and backward --------------------------------------------------------------------------------------
def mixed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.SiLU(), nn.Flatten(),
        nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Tanh(),
    )  # fmt: skip


def written(m: nn.Module, name: str) -> None:
    with torch.no_grad():
        m.state_dict(keep_vars=True)[name].mul_(2)


def assigned(m: nn.Module, name: str) -> None:
    p = m.get_parameter(name)
    p.data = p.data * 2


def of_other_dtype(m: nn.Module, _: str) -> None:
    m.double()


def called_again(m: nn.Module, _: str) -> None:
    m(torch.rand(2, 3, 6, 6))


def outcome(m: nn.Module, x: torch.Tensor, change: Callable[[nn.Module, str], None], name: str) -> Any:
    """The gradients of a step between whose halves something changes, or its error."""
    loss = m(x).square().mean()
    change(m, name)
    try:
        loss.backward()
    except (RuntimeError, RekindleError) as e:
        return e
    return [p.grad for p in m.parameters()]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[nn.Module, Plan]]:
    torch.manual_seed(0)
    found = []
    for model, x in ((mixed(), torch.rand(2, 3, 6, 6)), (mlp(), torch.randn(6, 12))):
        step = rekindle.trace(model, x, target="h200")
        found += [(model, rekindle.plan(step, minimize="memory", solver=s)) for s in ("none", "every", "chen-sqrt")]
    return found


@sweep
def test_writes_between_forward_and_backward_are_met_as_eager_meets_them(pairs: list[tuple[nn.Module, Plan]]) -> None:
    seen = set()
    for model, plan in pairs:
        x = torch.rand(2, 3, 6, 6) if isinstance(model[0], nn.Conv2d) else torch.randn(6, 12)
        changes = [(written, n) for n in model.state_dict()] + [(assigned, n) for n, _ in model.named_parameters()]
        for change, name in [*changes, (of_other_dtype, ""), (called_again, "")][: None if x.dim() == 4 else -1]:
            eager = outcome(copy.deepcopy(model), x, change, name)
            planned = outcome(rekindle.apply(copy.deepcopy(model), plan), x, change, name)
            where = f"{change.__name__} {name}, {plan.solver}: {planned}"
            if isinstance(eager, RuntimeError):
                assert isinstance(planned, RuntimeError), where
                seen.add("both raise")
            elif isinstance(planned, RekindleError):  # eager does not need it any more, but what runs again does
                assert change is written, where
                assert plan.solver != "none", where
                assert str(planned).startswith(f"{name} was written to in place after forward"), where
                seen.add("refused")
            else:
                assert not isinstance(planned, Exception), where
                assert same(planned, eager), where
                seen.add("same")
    assert seen == {"both raise", "refused", "same"}


def test_a_buffer_that_eager_saves_is_named(pairs: list[tuple[nn.Module, Plan]]) -> None:
    model, plan = pairs[0]
    error = outcome(rekindle.apply(copy.deepcopy(model), plan), torch.rand(2, 3, 6, 6), written, "1.running_mean")
    assert "modified by an inplace operation: 1.running_mean" in str(error)


@pytest.mark.parametrize("solver", ["none", "every"])
def test_a_hook_that_writes_what_backward_still_reads(solver: str) -> None:
    """Eager looks at the version of a saved tensor when it comes to it."""
    x, found = traced("mlp")

    def hooked(m: nn.Module) -> nn.Module:
        last, first = m[2][2].weight, m[1][0].weight

        def write(_: torch.Tensor) -> None:
            with torch.no_grad():
                first.mul_(2)

        last.register_hook(write)
        return m

    planned = rekindle.apply(fresh("mlp"), rekindle.plan(found, minimize="memory", solver=solver))
    for m in (fresh("mlp"), planned):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            hooked(m)(x).square().mean().backward()
