"""Models that cannot be captured whole: their parts are planned under one goal, and train bit for bit as eager does."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as by_hand

import models_in_parts
import rekindle
from command_line import Ran, assert_one_paragraph
from marks import every, few, sweep
from models_in_parts import Experts, Packed, differing, opt, packed, routed, train, words
from refused import left_alone
from rekindle import FormatError, InfeasibleBudget, PartsPlan, PlanMismatch, RekindleWarning, TraceError, UsageError
from rekindle.torch.measure import recording
from rekindle.torch.measure.as_before import as_before
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.parts.words import covered
from rekindle.torch.serve.verify import subject

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


def planned(model: nn.Module, sample: Any, **options: Any) -> PartsPlan:
    rekindle.checkpoint(model, sample, **(QUICK | options))
    plan = model.forward.plan
    assert isinstance(plan, PartsPlan)
    return plan


def held_peak(model: nn.Module, sample: Any) -> int:
    """Activation peak of a step in a loop that holds the results, in bytes."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    held = []

    def step() -> None:
        held.append(model(**sample) if isinstance(sample, dict) else model(*sample))
        (held[0] if isinstance(held[0], torch.Tensor) else held[0].loss).backward()

    return allocator_peak(step).peak_bytes


@pytest.mark.parametrize("make", few([routed, packed, opt], [routed, opt]))
def test_parts_train_as_eager_does(
    make: Callable[[], tuple[nn.Module, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, sample = make()
    twin = copy.deepcopy(model)
    with left_alone(model):
        plan = planned(model, sample, max_overhead=0.15, progress=None)
        rekindle.restore(model)
    assert f"{type(model).__name__}: {plan.covered}" in capsys.readouterr().err
    rekindle.apply(model, plan)
    assert differing(train(model, sample), train(twin, sample)) == 0
    assert plan.peak_bytes < plan.baseline_peak_bytes


def test_the_line_says_what_is_covered() -> None:
    model, sample = routed()
    plan = planned(model, sample, minimize="memory")
    assert "planned: " in plan.covered
    assert "% of activation bytes)" in plan.covered
    assert "models_in_parts.py:" in plan.covered
    assert "run again in backward: " in plan.covered
    assert str(plan).count(plan.covered) == 1
    assert plan.covered in plan.sentence


class PeakOutside(nn.Module):
    """Holds most at its peak in the code around its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wide = x.repeat(1, 64).exp().sum()
        for part in self.parts:
            x = part(x)
        return x.square().mean() * (1 + 0 * wide.item())


def test_a_plan_that_saves_nothing_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, x = PeakOutside(), torch.rand(256, 32)
    plan = planned(model, (x,), minimize="memory", progress=None)
    assert plan.measured_bytes == plan.baseline_peak_bytes
    assert "saves nothing: the plain step takes" in capsys.readouterr().err
    assert "saves nothing" in plan.sentence
    assert not plan.stays_plain
    assert "saves nothing" not in planned(*routed(), minimize="memory").sentence
    # one that was measured to take more than the plain step: no part runs by it, in another process either
    assert plan.measured_bytes is not None
    taken = plan.measured_bytes + 2**20
    replace(plan, measured_bytes=taken, peak_bytes=taken).save(tmp_path / "plan.json")
    dear = rekindle.apply(PeakOutside(), rekindle.load(tmp_path / "plan.json"))
    dear(x).backward()
    status = rekindle.status(dear)
    assert (status.calls, [(r.calls, r.why.endswith("all runs plain")) for r in status.plain]) == (0, [(1, True)])
    check = rekindle.verify(dear, x)
    assert check.ok
    assert check.measured_peak_bytes == check.plain_peak_bytes


def test_the_line_is_short_however_many_parts_run_plain() -> None:
    every = [f"Layer{i} (train.py:{i} reads a tensor)" for i in range(9)]
    line = covered(nn.Linear(2, 2), [], 0.96, every)
    assert len(line) < 120
    assert line.endswith("; plain: Layer0 (train.py:0 reads a tensor) and 8 more")


def test_equal_parts_share_their_programs() -> None:
    model, sample = opt(layerdrop=0.0, layers=6)
    plan = planned(model, sample, max_overhead=0.1, parts="model.decoder.layers.*")
    model(**sample).loss.backward()
    programs = {id(m.forward.last.runner.program) for m in model.model.decoder.layers}
    assert len(plan.parts) == 6
    assert len(programs) == len({p.plans[0].schedule for p in plan.parts}) < 6


def test_strict_refuses_and_leaves_all_as_it_was() -> None:
    model, sample = routed()
    with left_alone(model, sample), pytest.raises(TraceError, match=r"models_in_parts\.py"):
        rekindle.checkpoint(model, sample, max_overhead=0.1, strict=True, **QUICK)
    with pytest.raises(UsageError, match="strict"):
        rekindle.checkpoint(model, sample, max_overhead=0.1, strict="yes", **QUICK)  # type: ignore[arg-type]


def test_a_model_without_a_part_worth_it_is_refused_with_the_line() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.sum().item() > 0 else -self.layer(x)

    model = Reads()
    with left_alone(model), pytest.raises(TraceError, match=r"test_parts\.py.*No part of the model"):
        rekindle.checkpoint(model, (torch.ones(2, 4),), max_overhead=0.1, **QUICK)


def test_a_budget_in_bytes_is_kept_with_the_results_held() -> None:
    torch.manual_seed(0)
    model, sample = routed(layers=3)
    plan = planned(copy.deepcopy(model), sample, max_overhead=0.0)
    budget = plan.resident_bytes + (plan.baseline_peak_bytes - plan.resident_bytes) // 2
    found = planned(model, sample, budget=budget)
    assert found.measured_bytes <= found.peak_bytes <= budget
    assert held_peak(model, sample) + found.resident_bytes <= budget
    assert 0 < found.least_overhead <= found.overhead < 0.3
    assert rekindle.verify(model, sample).ok


@sweep
def test_parts_take_less_than_layers_run_again_by_hand() -> None:
    torch.manual_seed(0)
    model, sample = routed(layers=4)
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        block.forward = lambda x, f=block.forward: by_hand(f, x, use_reentrant=False)
    theirs = held_peak(twin, sample)
    for p in twin.parameters():
        p.grad = None
    plan = planned(
        model, sample, budget=theirs + planned(copy.deepcopy(model), sample, max_overhead=0.0).resident_bytes
    )
    check = rekindle.verify(model, sample, count_flops=True)
    assert check.ok
    assert plan.measured_bytes - plan.resident_bytes <= theirs
    assert check.flops_overhead < 0.32  # by hand every layer runs again: a third


@sweep
def test_the_extra_flops_stay_within_the_goal_where_parameters_are_frozen() -> None:
    """Backward of frozen layers costs one forward, not two: the share of what runs again is larger than where all train."""
    torch.manual_seed(0)
    model, sample = routed()
    for p in [p for name, p in model.named_parameters() if not name.startswith("embed")]:
        p.requires_grad_(False)
    plan = planned(model, sample, max_overhead=0.25, cost="flops")
    assert any(part.again for part in plan.parts)
    check = rekindle.verify(model, sample, count_flops=True)
    assert 0 < check.flops_overhead <= plan.overhead + 1e-6 <= 0.25


def test_a_budget_that_no_division_keeps() -> None:
    model, sample = routed()
    with left_alone(model), pytest.raises(InfeasibleBudget, match="held outside of the parts") as e:
        rekindle.checkpoint(model, sample, budget=10_000, **QUICK)
    assert e.value.smallest_peak > e.value.budget
    assert planned(model, sample, budget=e.value.smallest_peak).peak_bytes <= e.value.smallest_peak


class Growing(Experts):
    """Multiplies its result by the number of its calls."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = x.dtype
        return super().forward(x) * self.calls


def test_a_part_that_does_more_than_compute_does_not_run_again() -> None:
    model, sample = routed(notes=True)
    plan = planned(model, sample, minimize="memory")
    assert not any(p.path.endswith(".experts") for p in plan.parts if p.again)
    before = [len(b.experts.noted) for b in model.blocks]
    model(*sample).backward()
    assert [len(b.experts.noted) for b in model.blocks] == [n + 1 for n in before]


@sweep
def test_a_part_that_sets_plain_attributes_runs_again_as_it_ran() -> None:
    torch.manual_seed(0)
    model, sample = routed()
    for block in model.blocks:
        block.experts = Growing(64, notes=False)
    twin = copy.deepcopy(model)
    plan = planned(model, sample, minimize="memory")
    assert any(p.again for p in plan.parts)
    assert differing(train(model, sample), train(twin, sample)) == 0
    assert [b.experts.calls for b in model.blocks] == [b.experts.calls for b in twin.blocks] == [3, 3]


@sweep
def test_layers_that_the_step_leaves_out_are_planned() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, sample = opt(layerdrop=0.5, layers=4)
    twin = copy.deepcopy(model)
    plan = planned(model, sample, max_overhead=0.15)
    assert [p.path for p in plan.parts] == [f"model.decoder.layers.{i}" for i in range(4)]
    assert differing(train(model, sample, 5), train(twin, sample, 5)) == 0
    model.model.decoder.layerdrop = 0.0  # every layer runs: the peak that the plan names
    assert held_peak(model, sample) <= 1.02 * plan.activation_peak_bytes


@sweep
def test_a_budget_is_kept_by_steps_that_leave_no_layer_out() -> None:
    torch.manual_seed(0)
    model, sample = opt(layerdrop=0.4)
    plain = planned(model, sample, max_overhead=0.0)
    budget = plain.resident_bytes + int(0.75 * (plain.baseline_peak_bytes - plain.resident_bytes))
    found = planned(model, sample, budget=budget)
    assert found.peak_bytes <= budget
    assert max(held_peak(model, sample) for _ in range(6)) + found.resident_bytes <= budget


# -- parts that the user names -----------------------------------------------------------------------------------------
def whole() -> tuple[nn.Module, Any]:
    """A model that could be captured whole."""
    blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(2))
    model = nn.Sequential(nn.Linear(8, 32), *blocks, nn.Linear(32, 8))
    return model.train(), (torch.randn(4, 16, 8),)


def test_named_parts() -> None:
    model, sample = whole()
    twin = copy.deepcopy(model)
    plan = planned(model, sample, max_overhead=0.2, parts=["1", "2"])
    assert [p.path for p in plan.parts] == ["1", "2"]
    rekindle.restore(model)
    assert [p.path for p in planned(model, sample, max_overhead=0.2, parts="[12]").parts] == ["1", "2"]
    step = [m(*sample).sum() for m in (model, twin) if torch.manual_seed(1)]
    for x in step:
        x.backward()
    assert differing([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()]) == 0


def test_a_whole_plan_takes_the_place_of_parts() -> None:
    model, sample = whole()
    own = rekindle.plan(rekindle.trace(model, sample, progress=False), minimize="memory", solver="feng")
    planned(model, sample, max_overhead=0.2, parts="[12]")
    rekindle.apply(model, own)
    assert rekindle.verify(model, sample).ok
    assert model.forward.plan is own
    rekindle.restore(model)
    assert [name for name, m in model.named_modules() if "forward" in m.__dict__] == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [("block.*", "names no submodule"), ((), "must be names"), (3, "must be names"), ("0", "saves memory")],
)
def test_parts_that_cannot_be(parts: Any, words: str) -> None:
    model, sample = whole()
    with left_alone(model), pytest.raises(UsageError, match=words):
        rekindle.checkpoint(model, sample, max_overhead=0.2, parts=parts, **QUICK)


def test_a_named_part_that_cannot_be_captured() -> None:
    model, sample = routed()
    with left_alone(model), pytest.raises(TraceError, match=r"parts: 'blocks\.0'.*models_in_parts\.py"):
        rekindle.checkpoint(model, sample, max_overhead=0.2, parts="blocks.?", **QUICK)


# -- files, copies, restore, other calls -------------------------------------------------------------------------------
def test_one_file_carries_all_parts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin, other = copy.deepcopy(model), copy.deepcopy(model)
    plan = planned(model, sample, minimize="memory")
    plan.save(tmp_path / "plan.json")
    loaded = rekindle.load(tmp_path / "plan.json")
    assert loaded == plan.each(lambda p: replace(p, trace=None))
    rekindle.apply(other, loaded)
    assert rekindle.verify(other, sample).ok
    assert differing(train(other, sample), train(twin, sample)) == 0
    with pytest.raises(PlanMismatch, match="submodule"):
        rekindle.apply(Packed(), loaded)


@pytest.mark.parametrize(
    "change",
    every(4, [
        {"peak_bytes": -1}, {"goal": {"budget": 1}}, {"parts": [{"module": "a", "plans": [0]}] * 2},
        {"parts": [{"module": "blocks.0", "plans": [99]}]},
        {"parts": [{"module": "a\nb", "plans": [0]}]}, {"overhead": -0.5}, {"covered": 3}, {"graphs": []}, {"cost": "cents"},
        {"parts": [{"module": "blocks.0", "plans": [0], "again": True}]}, {"measured_bytes": 2**50},
    ]),
)  # fmt: skip
def test_damaged_files(change: dict[str, Any], tmp_path: Path, saved: dict[str, Any]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(saved | change))
    with pytest.raises(FormatError):
        rekindle.load(path)


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    model, sample = routed()
    return planned(model, sample, max_overhead=0.2).to_json()


@pytest.mark.parametrize("command", [("solve", "--budget", "1GiB"), ("frontier",)])
def test_commands_that_take_a_graph_say_what_such_a_file_is(
    command: tuple[str, ...], tmp_path: Path, saved: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(saved))
    ran = Ran(capfd, command[0], path, *command[1:], "--json")
    assert (ran.code, ran.document["error"]["type"]) == (2, "UsageError")
    assert "plans for the parts of a model (rekindle.parts/1)" in ran.err
    assert f"rekindle explain {path}" in ran.err
    explained = Ran(capfd, "explain", path, "--json").document
    assert explained["saved_bytes"] == saved["baseline_peak_bytes"] - saved["peak_bytes"]
    assert explained["saved_bytes"] == explained["rest_bytes"] + sum(r["saved_bytes"] for r in explained["rows"])


@pytest.mark.parametrize("command", [("plan", "--max-overhead", "0.2"), ("frontier",)])
def test_commands_for_whole_models_name_the_remedy(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd, command[0], f"{models_in_parts.__file__}:routed", *command[1:])
    assert ran.code == 1
    assert_one_paragraph(ran.err)
    assert "models_in_parts.py:" in ran.err
    assert "rekindle.checkpoint(model, sample" in ran.err


def test_restore_and_copies() -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin = copy.deepcopy(model)
    planned(model, sample, minimize="memory")
    copied = copy.deepcopy(model)
    assert copied.forward.plan is model.forward.plan
    assert rekindle.restore(model) is model
    assert [name for name, m in model.named_modules() if "forward" in m.__dict__] == []
    assert differing(train(copied, sample), train(twin, sample)) == 0
    assert [name for name, m in copied.named_modules() if "forward" in m.__dict__] != []


@sweep
def test_planned_again_and_after_a_failure_as_before() -> None:
    model, sample = routed()
    first = planned(model, sample, max_overhead=0.1)
    with pytest.raises(InfeasibleBudget):
        rekindle.checkpoint(model, sample, budget=10_000, **QUICK)
    assert model.forward.plan is first
    assert rekindle.verify(model, sample).ok
    second = planned(model, sample, max_overhead=0.3)
    assert model.forward.plan is second
    assert rekindle.verify(model, sample, first).ok
    assert model.forward.plan is second


def test_other_shapes_and_modes() -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin = copy.deepcopy(model)
    planned(model, sample, minimize="memory")
    longer = (words(2, 48),)
    assert differing(train(model, longer), train(twin, longer)) == 0
    with torch.no_grad():
        assert torch.equal(model.eval()(*longer), twin.eval()(*longer))


def test_larger_inputs_than_the_budget_was_divided_for_are_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, sample = routed(layers=1)
    other = copy.deepcopy(model)
    planned(model, sample, budget=0.9, cost="flops").save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"))
    larger, smaller = (words(4, 48),), (words(2, 32),)
    for m in (model, other):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RekindleWarning)
            for x in (sample, smaller):
                m(*x).backward()
            with torch.no_grad():
                m(*larger)
        with pytest.warns(RekindleWarning, match="larger inputs .*1.5 KiB.*the budget is not divided again"):
            m(*larger).backward()
        with warnings.catch_warnings():  # once is enough
            warnings.simplefilter("error", RekindleWarning)
            m(*larger).backward()


@sweep
def test_larger_inputs_are_nothing_to_a_goal_that_is_no_budget() -> None:
    model, sample = routed(layers=1)
    planned(model, sample, minimize="memory", cost="flops")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RekindleWarning)
        model(words(4, 48)).backward()


def test_layers_left_out_that_equal_others_need_no_more_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, sample = opt(layerdrop=0.5, layers=6)
    seeds: list[Any] = []
    real = recording._Recorder.run

    def noted(self: Any, seed: int | None = None) -> None:
        seeds.append(seed)
        real(self, seed)

    monkeypatch.setattr(recording._Recorder, "run", noted)
    with as_before(model):
        found = recording.record(subject(model, sample))
    layers = [found[f"model.decoder.layers.{i}"] for i in range(6)]
    assert seeds == [None]
    assert {len(c.keys) for c in layers} == {0, 1}
    assert len({tuple(c.samples) for c in layers}) == 1
    assert f"model.decoder.layers.{[len(c.keys) for c in layers].index(0)}.self_attn" in found


def test_a_shape_that_is_an_error() -> None:
    model, sample = routed()
    planned(model, sample, minimize="memory", on_new_shape="error")
    model(*sample).backward()
    with pytest.raises(PlanMismatch):
        model(words(2, 48))


@sweep
def test_on_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model, sample = whole()
        plan = planned(model, sample, max_overhead=0.2, parts=["1", "2"])
        assert plan.peak_bytes < plan.baseline_peak_bytes
        with pytest.warns(rekindle.RekindleWarning, match="its parts copy nothing to the host"):
            again = planned(model, sample, max_overhead=0.2, parts=["1", "2"], offload=True)
        assert not again.host_blocks
