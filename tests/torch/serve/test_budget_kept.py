"""A budget in bytes that was accepted is kept by a loop that holds its results: `out = model(x); loss(out).backward()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rekindle
from marks import every, sweep
from rekindle import Graph, InfeasibleBudget, Op, Schedule, Trace, Value, simulate
from rekindle.model.held import held_peak, keeping_results
from rekindle.model.judge import plain_activation_bytes
from rekindle.model.schedule import Free, Run
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.serve.plan_trace import BLOCK_BYTES, SCALARS, bookkeeping
from strategies import chains, examples, joint_graphs, schedules, u_nets

FAST = "storages"


def hourglass() -> tuple[nn.Module, torch.Tensor]:
    """The model of the report: its result is as large as its widest activation."""
    torch.manual_seed(0)
    layers = (nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 64))
    return nn.Sequential(*layers), torch.rand(512, 16)


class Heads(nn.Module):
    """Several results, one of them early in forward, one read again by the others, one that the loss cannot read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(16, 48), nn.Linear(48, 48), nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        early = torch.tanh(self.stem(x))
        late = torch.tanh(self.body(early)) + early
        return {"early": early, "out": self.head(late).sigmoid(), "best": late.argmax(1)}


class Dropping(nn.Module):
    """Random ops, which read the generator's state where they run again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def image() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Tanh())
    return nn.Sequential(*layers), torch.rand(4, 3, 16, 16)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "hourglass": hourglass,
    "heads": lambda: (Heads(), torch.rand(256, 16)),
    "dropout": lambda: (Dropping(), torch.rand(128, 32)),
    "image": image,
    "float64": lambda: (hourglass()[0].double(), hourglass()[1].double()),
}


def total(out: Any) -> torch.Tensor:
    tensors = out.values() if isinstance(out, dict) else [out]
    return torch.stack([t.sum() for t in tensors if t.requires_grad]).sum()


def loop(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """A step of the ordinary loop, gradients being there already."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step() -> None:
        out = model(x)
        loss = total(out)
        loss.backward()

    return step


def kept(model: nn.Module, x: torch.Tensor, trace: Trace, budget: int, **how: Any) -> bool:
    """Whether there is a plan for the budget; if there is, the measured loop stays within it."""
    try:
        plan = rekindle.plan(trace, budget, **{"solver": FAST} | how)
    except InfeasibleBudget:
        return False
    rekindle.apply(model, plan, on_new_shape="error")
    try:
        measured = trace.graph.resident_bytes + allocator_peak(loop(model, x)).peak_bytes
    finally:
        rekindle.restore(model)
    assert measured <= budget, f"{measured - budget} B above the budget"
    assert plan.peak_bytes == simulate(plan.graph, plan.schedule).peak_bytes  # the judge's, results not held
    return True


def least_budget(trace: Trace, solver: str = FAST) -> int:
    with pytest.raises(InfeasibleBudget) as e:
        rekindle.plan(trace, 1, solver=solver)
    return e.value.smallest_peak


@pytest.mark.parametrize("name", every(3, MODELS))
def test_the_smallest_peak_that_an_error_names_is_a_budget_that_is_kept(name: str) -> None:
    model, x = MODELS[name]()
    trace = rekindle.trace(model, x)
    least = least_budget(trace)
    assert kept(model, x, trace, least)
    assert kept(model, x, trace, least + 64)
    with pytest.raises(InfeasibleBudget) as e:
        rekindle.plan(trace, least - 1, solver=FAST)
    assert e.value.smallest_peak == least


@sweep
def test_what_an_error_names_is_reached_by_the_portfolio_too() -> None:
    model, x = hourglass()
    trace = rekindle.trace(model, x)
    assert kept(model, x, trace, least_budget(trace, "auto"), solver="auto")


def test_the_room_for_results_is_not_given_up() -> None:
    """As reported: least peak and 64 B were accepted, and the loop took 30 % more."""
    model, x = hourglass()
    trace = rekindle.trace(model, x)
    least = rekindle.plan(trace, minimize="memory", solver="dtr")
    with pytest.raises(InfeasibleBudget, match="128.0 KiB results, which a training loop holds") as e:
        rekindle.plan(trace, least.peak_bytes + 64, solver="dtr")
    assert e.value.bound_bytes <= e.value.smallest_peak
    # a bare graph knows no loop, nor hooks that write parameters inside backward: the judge's peak alone has to fit
    assert rekindle.plan(trace.graph, least.peak_bytes + 64, solver="dtr").peak_bytes <= least.peak_bytes
    # and so it is for a fraction of the plain peak
    fraction = least.activation_peak_bytes / least.baseline_activation_bytes + 1e-6
    assert rekindle.plan(trace, fraction, solver="dtr").peak_bytes == least.peak_bytes


@examples(15)
@given(
    widths=st.lists(st.sampled_from([4, 16, 48, 64]), min_size=2, max_size=5),
    image=st.booleans(),
    drop=st.booleans(),
    batch=st.sampled_from([3, 64, 200]),
    share=st.floats(0, 1),
)
def test_an_accepted_budget_is_kept(widths: list[int], image: bool, drop: bool, batch: int, share: float) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b)] if image else [nn.Linear(a, b)]
        layers += [nn.GELU(), *([nn.Dropout(0.1)] if drop else [])]
    model = nn.Sequential(*layers)
    x = torch.rand(min(batch, 8), widths[0], 8, 8) if image else torch.rand(batch, widths[0])
    trace = rekindle.trace(model, x)
    bottom = rekindle.plan(trace, minimize="memory", solver=FAST).peak_bytes
    top = rekindle.plan(trace, 1.0, solver="none").peak_bytes
    kept(model, x, trace, bottom + int(share * (top - bottom)))
    assert kept(model, x, trace, least_budget(trace))


def held_plain(graph: Graph, schedule: Schedule) -> int:
    """`held_peak` in plain words: the judge's steps, and for each result the copy that the caller got."""
    caller: set[int] = set()  # results whose copy only the caller holds still
    live: set[int] = set()
    results: set[int] = set()
    peak = graph.resident_bytes
    size = graph.arrays.bytes
    for s in schedule.steps:
        if isinstance(s, Free):
            live.discard(s.value)
            caller |= {s.value} & results
            continue
        assert isinstance(s, Run)
        op = graph.ops[s.op]
        made = op.outputs[1:] if s.into is not None else op.outputs
        held = [*live, *caller]
        peak = max(peak, graph.resident_bytes + int(size[held].sum() + size[list(made)].sum()) + op.workspace)
        caller |= set(op.outputs) & results
        live |= set(op.outputs)
        live.discard(-1 if s.into is None else s.into)
        if s.op == graph.boundary:
            results = {v for v in op.inputs if graph.arrays.producer[v] >= 0}
    return peak


@examples(60)
@given(data=st.data())
def test_held_peak_is_what_its_words_say(data: st.DataObject) -> None:
    graph = data.draw(st.one_of(chains(), joint_graphs(), u_nets()))
    schedule = data.draw(schedules(graph))
    assert held_peak(graph, schedule) == held_plain(graph, schedule)
    assert held_peak(graph, schedule) >= simulate(graph, schedule).peak_bytes


def test_a_result_that_is_made_again_counts_twice() -> None:
    #  0 -> a -> 1 (result, 100 B) -> boundary -> 2 -> b reads 1 and 2
    values = (Value(0), Value(100), Value(10), Value(10))
    ops = (Op("a", (0,), (1,)), Op("boundary", (1,), (2,), recompute=False), Op("b", (1, 2), (3,), backward=True))
    graph = Graph(values, ops, (3,))
    once = Schedule([Run(0), Run(1), Run(2), Free(1), Free(2)], graph.hash)
    again = Schedule([Run(0), Run(1), Free(1), Run(0), Run(2), Free(1), Free(2)], graph.hash)
    twin = Schedule([Run(0), Run(1), Run(0), Run(2), Free(1), Free(2)], graph.hash)
    assert [simulate(graph, s).peak_bytes for s in (once, again, twin)] == [120, 120, 210]
    assert [held_peak(graph, s) for s in (once, again, twin)] == [120, 220, 220]


def test_without_results_the_judge_says_it_all() -> None:
    graph = Graph((Value(0), Value(8)), (Op("a", (0,), (1,)),), (1,))
    schedule = Schedule.baseline(graph)
    assert held_peak(graph, schedule) == simulate(graph, schedule).peak_bytes == 8
    assert keeping_results(graph).hash == graph.hash


class Many(nn.Module):
    """As many stages as parameters."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(4, dtype=dtype)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for s in self.scales:
            x = torch.tanh(x * s)
        return x


@pytest.mark.parametrize("dtype", every(2, [torch.float32, torch.float64]))
def test_many_stages_take_no_more_than_few(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch.run import stages

    monkeypatch.setattr(stages, "STAGES_LEAST", 10**9)  # nothing waits
    model, x = Many(60, dtype), torch.rand(2, 4, dtype=dtype)
    trace = rekindle.trace(model, x)
    plan = rekindle.plan(trace, 1.0, solver="none")
    rekindle.apply(model, plan)
    assert len(next(model.forward.bounds).runner.program.stages) == 60  # type: ignore[operator, union-attr]
    beside = allocator_peak(loop(model, x)).peak_bytes - held_peak(trace.graph, plan.schedule)
    assert beside + trace.graph.resident_bytes <= 2 * x.element_size()  # the loss and its gradient
    assert bookkeeping(trace) == SCALARS * BLOCK_BYTES


def test_a_random_op_on_the_cpu_has_room_for_the_state_of_the_generator() -> None:
    model, x = MODELS["dropout"]()
    state = allocator_peak(lambda: torch.get_rng_state()).peak_bytes
    assert bookkeeping(rekindle.trace(model, x)) == SCALARS * BLOCK_BYTES + state


@sweep
def test_gradients_that_wait_for_the_last_read_make_no_budget_dear() -> None:
    """The solver does not know of such waits. A finished schedule that took 1 KiB more than the budget led to the plan of least
    memory, at +377 % in place of +13 %."""
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(32, 32), nn.Tanh())))
    trace = rekindle.trace(model, torch.rand(256, 32), target="h200")
    resident, activations = trace.graph.resident_bytes, plain_activation_bytes(trace.graph)
    for share in (0.7, 0.8, 0.9):
        at_hand = rekindle.plan(trace, share - 0.15, solver="storages").overhead
        for more in range(0, 8192, 2048):
            budget = resident + int(share * activations) + more
            assert rekindle.plan(trace, budget, solver="storages").overhead <= at_hand + 0.1
