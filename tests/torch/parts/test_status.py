"""`rekindle.status`: what is planned of a model, how often it ran, and what ran plain and why."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import few
from models_in_parts import routed
from rekindle import RekindleWarning, Status, UsageError
from test_compiled_parts import net

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


def block(_: int) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.Dropout(0.1))


class Net(nn.Module):
    """A few blocks; a call with `flag` cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*map(block, range(4)))

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        y: torch.Tensor = self.blocks(x).square().mean()
        return y * 2 if flag and y.item() > 1e9 else y


def whole(**how: Any) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 32)
    rekindle.checkpoint(model, x, **({"budget": 0.6} | QUICK | how))
    return model, x


def steps(model: nn.Module, *batches: torch.Tensor) -> None:
    for x in batches:
        model(x).backward()


def fits_a_screen(s: Status) -> str:
    text = repr(s)
    assert text == str(s)
    assert max(map(len, text.splitlines())) <= 80
    document = json.loads(json.dumps(s.to_json()))
    assert document["format"] == "rekindle.status/1"
    assert document["calls"] == s.calls
    return text


def test_a_model_without_a_plan() -> None:
    model = Net()
    s = rekindle.status(model)
    assert (s.kind, s.calls, s.plans, s.peak_bytes, s.measured_bytes) == ("none", 0, (), None, None)
    assert fits_a_screen(s) == "Net has no plan: it runs as it is."
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.calls = 1  # type: ignore[misc]
    with pytest.raises(UsageError, match="not a torch.nn.Module"):
        rekindle.status("a model")  # type: ignore[arg-type]


def test_the_submodules_that_have_plans_are_named() -> None:
    around = nn.Sequential(nn.Flatten(), whole()[0])
    s = rekindle.status(around)
    assert (s.kind, s.inside) == ("none", ("1",))
    assert "Its submodules 1 have" in fits_a_screen(s)


def test_a_whole_plan() -> None:
    model, x = whole()
    s, plan = rekindle.status(model), model.forward.plan
    assert (s.kind, s.calls, s.idle, s.plain) == ("whole", 0, 0, ())  # the step that checkpoint measured does not count
    assert (s.peak_bytes, s.plain_bytes, s.overhead) == (plan.peak_bytes, plan.baseline_peak_bytes, plan.overhead)
    for _ in range(3):
        model(x).backward()
    model(x[:32]).backward()
    with torch.no_grad():
        model(x)
    model.eval()
    model(x)
    model.train()
    s = rekindle.status(model)
    assert (s.calls, s.idle, s.plain) == (4, 2, ())
    assert [(p.name, p.calls) for p in s.plans] == [("[64, 32]", 3), ("[32, 32]", 1)]
    assert s.plans[0].peak_bytes == plan.peak_bytes
    assert s.plans[0].measured_bytes == s.measured_bytes
    assert s.plans[1].measured_bytes is None
    text = fits_a_screen(s)
    assert "Calls by the plan: 4; plain calls: 0" in text
    assert "calls run as before: 2" in text


def test_measured_is_what_was_measured_last() -> None:
    model, x = whole(check=False)
    s = rekindle.status(model)
    assert s.measured_bytes is None
    assert s.seconds is None
    assert "not measured" in fits_a_screen(s)
    check = rekindle.verify(model, x)
    s, held = rekindle.status(model), model.forward.plan.graph.resident_bytes
    assert s.measured_bytes == check.measured_peak_bytes + held
    assert check.plain_peak_bytes is not None
    assert s.measured_plain_bytes == check.plain_peak_bytes + held
    assert (s.seconds, s.plain_seconds) == (check.planned_seconds, check.plain_seconds)
    assert s.calls == sum(p.calls for p in s.plans) == 0  # calls of a check do not count
    again = rekindle.verify(model, x, model.forward.plan)  # the same plan, given by name
    assert rekindle.status(model).seconds == again.planned_seconds != check.planned_seconds
    model, x = whole()
    assert rekindle.status(model).measured_bytes is not None  # by checkpoint


def test_a_step_is_timed_without_its_instruments() -> None:
    """To start a recording takes a hundred times as long as this step, and to read it too."""
    import time

    model, x = whole()
    begin = time.perf_counter()
    check = rekindle.verify(model, x)
    everything = time.perf_counter() - begin
    assert check.plain_seconds is not None
    assert 0 < check.planned_seconds + check.plain_seconds < 0.5 * everything


def test_plain_calls_have_their_reasons() -> None:
    model, x = whole()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(3):
            model(x, flag=True).backward()
        for _ in range(2):
            torch.func.grad(lambda x: model(x))(x)
    s = rekindle.status(model)
    assert [x.calls for x in s.plain] == [3, 2]
    assert s.calls == 0
    said = [str(w.message) for w in given]
    assert [x.why for x in s.plain] == said  # the sentences of the warnings, each given once
    assert "none can be made" in said[0]
    assert "3 x Net was called" in fits_a_screen(s)


def test_new_shapes_that_run_plain_are_one_reason() -> None:
    model, x = whole(on_new_shape="plain")
    with pytest.warns(RekindleWarning, match="for which there is no plan") as given:
        steps(model, x[:8], x[:16], x[:16], x[:24])
    s = rekindle.status(model)
    assert [x.calls for x in s.plain] == [4]
    assert len(given) == 1


def test_training_in_eval_is_a_reason_and_evaluation_is_none() -> None:
    model, x = whole()
    model.eval()
    for _ in range(3):
        model(x)
    with pytest.warns(RekindleWarning, match="trained in eval"):
        steps(model, *[x] * 5)
    s = rekindle.status(model)
    assert (s.idle, [x.calls for x in s.plain]) == (6, [2])  # three steps show that it is trained
    assert "is trained in eval()" in s.plain[0].why


def test_a_refusal_that_a_check_met_is_said_to_the_loop() -> None:
    """The check gives no warnings; before, the loop's calls then ran plain without a word."""
    model, x = whole()
    given = {"x": x, "flag": True}
    rekindle.verify(model, given)
    assert rekindle.status(model).plain == ()
    with pytest.warns(RekindleWarning, match="none can be made"):
        model(**given).backward()
    assert [x.calls for x in rekindle.status(model).plain] == [1]


def test_copies_pickles_and_restored_models() -> None:
    model, x = whole(on_new_shape="plain")
    model(x).backward()
    with pytest.warns(RekindleWarning):
        model(x[:8]).backward()
    twin, arrived = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for m in (twin, arrived):
        s = rekindle.status(m)
        assert (s.kind, s.calls, s.idle, s.plain) == ("whole", 0, 0, ())
        m(x).backward()
        assert rekindle.status(m).calls == 1
    assert rekindle.status(twin).measured_bytes == rekindle.status(model).measured_bytes
    assert rekindle.status(arrived).measured_bytes is None
    assert rekindle.status(model).calls == 1
    rekindle.restore(model)
    assert rekindle.status(model).kind == "none"
    rekindle.apply(model, twin.forward.plan)
    assert rekindle.status(model).calls == 0


def loss(model: nn.Module, sample: Any) -> torch.Tensor:
    result = model(**sample) if isinstance(sample, dict) else model(*sample)
    made: torch.Tensor = result if isinstance(result, torch.Tensor) else result.loss
    return made.sum()


def test_parts() -> None:
    torch.manual_seed(0)
    model, sample = routed()
    rekindle.checkpoint(model, sample, minimize="memory", **QUICK)
    plan, s = model.forward.plan, rekindle.status(model)
    assert (s.kind, s.calls, s.peak_bytes, s.measured_bytes) == ("parts", 0, plan.peak_bytes, plan.measured_bytes)
    for _ in range(3):
        loss(model, sample).backward()
    with torch.no_grad():
        loss(model, sample)
    model.eval()
    loss(model, sample)
    model.train()
    s = rekindle.status(model)
    assert (s.calls, s.idle, s.plain) == (3, 2, ())
    counted = {p.name: p.calls for p in s.plans}
    assert sum(counted.values()) == 3 * len(plan.parts)
    assert counted == {
        next(k for k in counted if "Attention" in k): 3 * sum(bool(p.plans) for p in plan.parts),
        next(k for k in counted if "runs again whole" in k): 3 * sum(p.again for p in plan.parts),
    }
    assert "Calls by the plan: 3; plain calls of parts: 0" in fits_a_screen(s)
    check = rekindle.verify(model, sample)
    after = rekindle.status(model)
    assert (after.calls, after.plans) == (s.calls, s.plans)
    assert after.measured_bytes == plan.with_resident(check.measured_peak_bytes)
    assert after.seconds == check.planned_seconds
    for m in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (rekindle.status(m).kind, rekindle.status(m).calls) == ("parts", 0)
        assert sum(p.calls for p in rekindle.status(m).plans) == 0
        loss(m, sample).backward()
        assert rekindle.status(m).calls == 1
        assert sum(p.calls for p in rekindle.status(m).plans) == len(plan.parts)
    rekindle.restore(model)
    assert rekindle.status(model).kind == "none"


def test_parts_that_run_plain_say_why() -> None:
    torch.manual_seed(0)
    model, sample = routed()
    rekindle.checkpoint(model, sample, minimize="memory", on_new_shape="plain", **QUICK)
    args = tuple(t[:1] for t in sample)
    with pytest.warns(RekindleWarning, match="for which there is no plan"):
        loss(model, args).backward()
    s = rekindle.status(model)
    planned = sum(bool(p.plans) for p in model.forward.plan.parts)
    assert [x.calls for x in s.plain] == [planned]  # equal parts, one reason
    assert "Attention was called with inputs" in s.plain[0].why


@pytest.mark.parametrize("named", few([False, True], [False]))
def test_compiled_parts(named: bool) -> None:
    model, x = net()
    rekindle.checkpoint(model, x, budget=0.6, compile=True, parts="blocks.*" if named else None, progress=False)
    plan, s = model.forward.plan, rekindle.status(model)
    assert (s.kind, s.calls) == ("compiled", 0)
    rekindle.verify(model, x)  # the first that calls the stages
    assert rekindle.status(model).plans == s.plans
    for _ in range(2):
        model(x).backward()
    rekindle.verify(model, x, plan)  # which takes the parts off for a while
    model(x).backward()
    with torch.no_grad():
        model(x)
    model.eval()
    model(x)
    model.train()
    s = rekindle.status(model)
    assert (s.calls, s.idle, s.plain) == (3, 2, ())
    assert sum(p.calls for p in s.plans) == 3 * len(plan.parts)
    assert all("compiled, saves" in p.name for p in s.plans)
    assert s.seconds is not None
    fits_a_screen(s)
    (model.blocks[0].up if named else model.blocks[0]).register_forward_hook(lambda *_: None)
    with pytest.warns(RekindleWarning, match="hooks on its submodules"):
        steps(model, x, x)
    s = rekindle.status(model)
    assert [x.calls for x in s.plain] == [2]
    assert "which compiled code would not run" in s.plain[0].why
    assert s.calls == (5 if named else 3)
    twin = copy.deepcopy(model)
    assert (rekindle.status(twin).calls, rekindle.status(twin).plain) == (0, ())


def test_a_long_status_stays_on_the_screen() -> None:
    model, x = whole()
    for n in range(31, 44):
        model(torch.randn(n, 32)).backward()
    s = rekindle.status(model)
    assert s.calls == sum(p.calls for p in s.plans) == 13
    assert "other plans" in fits_a_screen(s)
    assert len(s.to_json()["plans"]) == 14
