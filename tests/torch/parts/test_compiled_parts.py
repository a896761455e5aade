"""Parts that run through torch.compile: measured ways, one goal, the numbers of the same parts compiled without a plan."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from compiled_steps import lose_half_of_a_gradient, trained
from marks import sweep
from rekindle import PartsPlan, RekindleWarning, UsageError
from rekindle.ask import TraceOptions
from rekindle.compiling import Compiled, CompileOptions
from rekindle.errors import FormatError
from rekindle.parts.files import load
from rekindle.torch.compiled import stage
from rekindle.torch.compiled.compiled_forward import CompiledForward
from rekindle.torch.compiled.whole_graph import StagedForward
from rekindle.torch.parts import searching
from rekindle.torch.parts.applied import forwards_of
from rekindle.torch.parts.dividing import Dividing
from rekindle.torch.serve.verify import subject
from rekindle.torch.ways import compiled_finding
from rekindle.torch.ways.compiled_ways import compiled_ways

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture
def reasons(caplog: pytest.LogCaptureFixture) -> Callable[[PartsPlan], str]:
    """The reasons why parts run plain: those in the sentence of a plan, and those in the log that it has no room for."""
    caplog.set_level("INFO", logger="rekindle")
    return lambda plan: plan.sentence + caplog.text


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int, drop: float):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Equal blocks, and a loss in its own forward."""

    def __init__(self, depth: int = 6, width: int = 32, drop: float = 0.0):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, drop) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Breaks(Block):
    """A block that torch.compile cannot compile whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


def net(drop: float = 0.0, depth: int = 6) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net(depth, drop=drop), torch.randn(16, 32, 32)


def forwards(model: nn.Module) -> list[CompiledForward]:
    found = [f for _, f in forwards_of(model)]
    assert all(isinstance(f, CompiledForward) for f in found)
    return found  # type: ignore[return-value]


def compiled_as_it_is(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """A copy of a planned model whose parts are compiled without a plan."""
    twin = copy.deepcopy(model)
    tried(twin, x)  # its forward is cut into stages by its first call
    for forward in forwards(twin):
        forward.way, forward._call = Compiled(), None
    return twin


def tried(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Losses and gradients of three steps of training, after which the model is as before."""
    before = copy.deepcopy(model.state_dict())
    found = trained(model, x)
    model.load_state_dict(before)
    return found


def apart(one: nn.Module, other: nn.Module, x: torch.Tensor) -> float:
    pairs = zip(tried(one, x), tried(other, x), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@pytest.fixture(scope="module")
def half() -> tuple[Net, torch.Tensor]:
    """A model that is planned for half of its activation memory."""
    model, x = net()
    return rekindle.checkpoint(model, x, 0.5, compile=True, **QUIET), x  # type: ignore[return-value]


def test_the_goal_is_kept_as_predicted(half: tuple[Net, torch.Tensor]) -> None:
    model, x = half
    plan = model.forward.plan
    assert isinstance(plan, PartsPlan)
    check = rekindle.verify(model, x)
    assert check.ok, check
    assert abs(check.peak_error) < 0.01
    assert plan.peak_bytes - plan.resident_bytes <= 0.5 * (plan.baseline_peak_bytes - plan.resident_bytes)  # type: ignore[operator]
    assert "6 stages of Net (" in plan.sentence.partition("compiled: ")[2]
    assert check.eager_difference is not None
    assert check.eager_difference < 1e-5
    assert "away from the step without torch.compile" in str(check)


def test_numbers_are_those_of_parts_compiled_without_a_plan(half: tuple[Net, torch.Tensor]) -> None:
    model, x = half
    assert {f.way.saves for f in forwards(model) if f.way} != {"min-cut"}
    assert apart(model, compiled_as_it_is(model, x), x) < 1e-5
    assert apart(model, net()[0], x) < 1e-5
    assert [*model.state_dict()] == [*net()[0].state_dict()]


def test_autocast_scaled_losses_and_accumulation() -> None:
    model, x = net()
    with torch.autocast("cpu", torch.bfloat16):
        rekindle.checkpoint(model, x, 0.5, compile=True, **QUIET)
        twin = compiled_as_it_is(model, x)

    def steps(net: nn.Module) -> list[torch.Tensor]:
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer.zero_grad()
        for _ in range(2):
            for y in (x, -x):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = net(y)
                scaler.scale(loss / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [loss.detach(), *net.parameters()]

    for ours, theirs in zip(steps(model), steps(twin), strict=True):
        assert (ours - theirs).abs().max() <= 1e-3 * theirs.abs().max()
    assert {f.way.saves for f in forwards(model) if f.way} != {"min-cut"}


def test_plans_travel(half: tuple[Net, torch.Tensor], tmp_path: Path) -> None:
    model, x = half
    model.forward.plan.save(tmp_path / "plan.json")
    read = load(tmp_path / "plan.json")
    assert isinstance(read, PartsPlan)
    assert read.parts == model.forward.plan.parts
    assert read.captured.compile == CompileOptions()
    assert '"rekindle.parts/2"' in (tmp_path / "plan.json").read_text()
    assert "compiled, saves" in str(read.explain())
    assert "saves " in str(read)
    bound = rekindle.apply(net()[0], read)
    for other in (bound, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert apart(other, model, x) == 0.0
        assert [f.way for f in forwards(other)] == [f.way for f in forwards(model)]
    assert not forwards_of(rekindle.restore(bound))


def test_damaged_files_are_refused(half: tuple[Net, torch.Tensor]) -> None:
    from rekindle.parts.files import parts_plan_from_json

    doc = half[0].forward.plan.to_json()
    for key, wrong in (("saves", "everything"), ("held_bytes", -1), ("extra_seconds", "long")):
        parts = [*doc["parts"]]
        parts[0] = {**parts[0], "compiled": {**parts[0]["compiled"], key: wrong}}
        with pytest.raises(FormatError, match="compiled"):
            parts_plan_from_json({**doc, "parts": parts}, "the file")


def test_torch_compile_around_it_keeps_the_plan(half: tuple[Net, torch.Tensor]) -> None:
    model, x = half
    around = torch.compile(copy.deepcopy(model))
    assert apart(around, model, x) < 1e-5  # type: ignore[arg-type]  # the loss is compiled too
    trained(around, x)
    assert all(f._call is not None for f in forwards(around._orig_mod))  # type: ignore[attr-defined]


def test_calls_that_do_not_train_run_as_they_are(half: tuple[Net, torch.Tensor]) -> None:
    model, x = half
    with torch.no_grad():
        assert torch.equal(model(x), net()[0](x))


def test_equal_parts_are_compiled_once(half: tuple[Net, torch.Tensor]) -> None:
    """Another model of twice the depth compiles nothing: its blocks are those of the first."""
    model, x = net(depth=12)
    before = len(stage._compiled)
    rekindle.checkpoint(model, x, 0.4, compile=True, **QUIET)
    trained(model, x)
    assert len(stage._compiled) == before > 0
    assert 0 < len(forwards_of(model)) <= 12


def test_masks_are_those_of_parts_compiled_without_a_plan() -> None:
    model, x = net(drop=0.2)
    rekindle.checkpoint(model, x, 0.5, compile=True, effort="quick", **QUIET)
    assert {f.way.saves for f in forwards(model) if f.way} != {"min-cut"}
    assert apart(model, compiled_as_it_is(model, x), x) < 1e-5
    check = rekindle.verify(model, x)
    assert check.ok, check
    assert check.eager_difference is None


@sweep
def test_eagers_masks_on_request() -> None:
    model, x = net(drop=0.2)
    rekindle.checkpoint(model, x, 0.6, compile={"options": {"fallback_random": True}}, effort="quick", **QUIET)
    assert apart(model, net(drop=0.2)[0], x) < 1e-5


def test_a_second_start_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    plans = []
    for i in range(3):
        model, x = net(depth=3)
        plans.append(rekindle.checkpoint(model, x, 0.7, compile=True, effort="quick", **QUIET).forward.plan)
        for file in (tmp_path / "ways").iterdir() if i == 1 else ():
            file.write_text(file.read_text().replace("min-cut", "everything"))  # damaged: it counts as absent
        monkeypatch.setattr(searching, "compiled_ways", compiled_ways if i else lambda *_: pytest.fail("measured"))
    assert plans[0].parts == plans[1].parts


@sweep
def test_a_second_start_runs_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    steps: list[str] = []
    run = Dividing._run
    monkeypatch.setattr(Dividing, "_run", lambda self, which, *more: (steps.append(which), run(self, which, *more))[1])

    def planned(damaged: str = "", **options: Any) -> PartsPlan:
        steps.clear()
        for file in (tmp_path / "parts").iterdir() if damaged else ():
            file.write_text(file.read_text().replace(damaged, "-1"))
        torch.manual_seed(0)
        model, x = net(depth=4)
        given = {"budget": 0.7, "compile": True, "effort": "quick", **QUIET, **options}
        plan: Any = rekindle.checkpoint(model, x, **given).forward.plan
        assert rekindle.verify(model, x).ok
        return plan  # type: ignore[no-any-return]

    first = planned()
    assert steps.count("plain") == 1
    assert (
        steps.count("planned") <= 4
    )  # as it is, in the ways that hold least, and by the division, which may be corrected
    again = planned()
    assert steps == []
    assert (again.parts, again.peak_bytes, again.covered) == (first.parts, first.peak_bytes, first.covered)
    assert again.sentence.partition(", solved")[0] == first.sentence.partition(", solved")[0]
    assert planned(budget=0.8).goal != first.goal
    assert steps
    planned(damaged=f'"peak_bytes": {first.peak_bytes}')
    assert steps
    planned(check=False)
    planned(cache=False)
    assert steps


class Linked(Net):
    """A net whose last lines also read what the first or the second block gives."""

    def __init__(self, read: int):
        super().__init__(depth=3)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = []
        for block in self.blocks:
            given.append(x := block(x))
        return (x + given[self.read]).square().mean()


def test_stages_that_are_linked_otherwise_are_other_graphs() -> None:
    x, kinds, graphs = torch.randn(16, 32, 32), [], []
    for read in (0, 1, 1):
        model = Linked(read)
        forward = StagedForward(model, CompileOptions(), None)
        forward.run_by({})
        forward(x)
        kinds.append([stage.kind for stage in forward.stages])
        graphs.append(forward.graphs)
    assert kinds[0] == kinds[1]
    assert graphs[0] != graphs[1] == graphs[2]


@pytest.fixture
def wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_half_of_a_gradient(monkeypatch)


def test_a_way_with_other_gradients_is_not_offered(wrong_way: None, reasons: Callable[[PartsPlan], str]) -> None:
    model, x = net(depth=5)
    plan = rekindle.checkpoint(model, x, 1.0, compile=True, effort="quick", **QUIET).forward.plan
    assert 'blocks.1 in its way "inputs" (its numbers are' in reasons(plan)
    assert all(p.compiled is None or p.compiled.saves != "inputs" for p in plan.parts)
    assert "with no part compiled, in the model's own time, " in replace(plan, parts=()).sentence


def test_a_part_that_cannot_be_compiled_runs_as_it_is(reasons: Callable[[PartsPlan], str]) -> None:
    model, x = net(depth=2)
    model.blocks.append(Breaks(32, 0.0))
    model.blocks.append(Breaks(32, 0.0))
    plan = rekindle.checkpoint(model, x, 0.1, compile=True, effort="quick", or_least=True, **QUIET).forward.plan
    assert "Breaks (torch.compile fails" in reasons(plan)
    assert [p.path for p in plan.parts] == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"compile": "inductor"}, "should be True, or a dict"),
        ({"compile": {"backend": "eager"}}, "leave `backend` out"),
        ({"compile": {"dynamic": True}}, "dynamic=True"),
        ({"compile": {"fullgraph": False}}, "fullgraph=False"),
        ({"compile": {"mode": "reduce-overhead"}}, "CUDA graphs"),
        ({"compile": {"options": {"triton.cudagraphs": True}}}, "CUDA graphs"),
        ({"compile": {"options": {"x": []}}}, "Inductor's settings"),
        ({"compile": {"options": {"fallback_random": True}, "mode": "max-autotune-no-cudagraphs"}}, "not both"),
        ({"compile": True, "strict": True}, "whole model"),
        ({"compile": True, "cost": "flops"}, "measures seconds"),
        ({"compile": True, "unused": ["logits"]}, "names no result"),
        ({"compile": True, "must_save": ["blocks.0"]}, "captured steps"),
        ({"compile": True, "parts": "blocks.9"}, "blocks.9"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(more: dict[str, Any], words: str) -> None:
    model, x = net(depth=2)
    with pytest.raises(UsageError, match=words):
        rekindle.checkpoint(model, x, 0.5, **more, **QUIET)


def test_a_model_without_numbers_is_refused() -> None:
    model = net(depth=2)[0].to("meta")
    with pytest.raises(UsageError, match="without numbers"):
        rekindle.checkpoint(model, torch.randn(16, 32, 32, device="meta"), 0.5, compile=True, **QUIET)


def test_hooks_and_forwards_of_their_own_run_uncompiled(
    half: tuple[Net, torch.Tensor], reasons: Callable[[PartsPlan], str]
) -> None:
    """Equal parts share code, which runs neither."""
    model, x = copy.deepcopy(half[0]), half[1]
    twin = net()[0]
    ran = []
    for m in (model, twin):
        m.blocks[1].up.register_forward_hook(lambda *_: ran.append(1))  # type: ignore[union-attr]
        m.blocks[2].drop.forward = lambda h: 2 * h  # type: ignore[union-attr, method-assign, assignment]
    with pytest.warns(RekindleWarning, match="has (hooks on its submodules|a forward of its own)"):
        assert apart(model, twin, x) < 1e-5
    assert len(ran) == 6
    plan = rekindle.checkpoint(twin, x, 1.0, compile=True, effort="quick", **QUIET).forward.plan
    assert "Block (has hooks on its submodules)" in reasons(plan)
    assert "Block (has a forward of its own)" in reasons(plan)


def test_parts_are_equal_where_all_is_that_forward_reads() -> None:
    model, x = net(depth=4)
    for i, block in enumerate(model.blocks):
        block.number = i  # type: ignore[assignment]
    model.blocks[3].drop.p = 0.5  # type: ignore[union-attr]
    named = [f"blocks.{i}" for i in range(1, 4)]  # the first is called with a tensor of no gradient
    units = compiled_finding.find(subject(model, x), named, TraceOptions(compile=CompileOptions()), False).units
    kinds = compiled_finding.Kinds()
    found = [kinds.of(u) for u in units]
    assert found[0] == found[1] != found[2]
    assert found == [compiled_finding.Kinds().of(u) for u in units]
