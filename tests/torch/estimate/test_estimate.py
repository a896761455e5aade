"""`rekindle.estimate` and `rekindle.largest_batch` beside measured steps of an eager loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rekindle
from command_line import Ran
from rekindle.ask import Budget, LeastMemory, PlanOptions
from rekindle.errors import TraceError, UsageError
from rekindle.estimates.estimate import PARTS
from rekindle.model.graph import Graph
from rekindle.model.plan import Plan
from rekindle.planning.planner import plan_graph
from rekindle.torch.estimate import kernel_memory, planned_batches
from rekindle.torch.estimate.largest import BatchSearch, OtherBatches
from rekindle.torch.estimate.planned_batches import Model, PlannedBatches
from rekindle.torch.estimate.verbs import EstimateRequest
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.private import FakeTensorMode
from rekindle.torch.tensors.loss import default_loss

MIB = 2**20


class Denoiser(nn.Module):
    """Convolutions, batch norm, dropout, a skip connection, and a loss whose kernel computes in a larger storage."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.mid = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Dropout(0.2), nn.GELU())
        self.up = nn.Conv2d(48, 3, 3, padding=1)

    def forward(self, x: Tensor, clean: Tensor) -> Tensor:
        a = self.down(x)
        b = F.interpolate(self.mid(a), scale_factor=2.0)
        return F.mse_loss(self.up(torch.cat([a, b], 1)), clean)


class Tied(nn.Module):
    """A recurrent language model whose head shares the embedding's weight."""

    def __init__(self, vocab: int = 2000) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(vocab, 64), nn.LSTM(64, 64), nn.Linear(64, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.lstm(self.embed(ids))[0]).flatten(0, 1), ids.flatten())


class Wide(nn.Module):
    """More parameters than activations: the peak is in the optimizer's step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(400, 400) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Translator(nn.Module):
    """A small encoder and decoder that returns logits: backward begins with a product by a gradient that is one number."""

    def __init__(self, cell: type[nn.RNNBase], vocab: int = 1000) -> None:
        super().__init__()
        self.embed, self.read, self.write = nn.Embedding(vocab, 32), *(cell(32, 48, batch_first=True) for _ in range(2))
        self.head = nn.Linear(48, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.write(self.embed(target), self.read(self.embed(source))[1])[0])  # type: ignore[no-any-return]


def translator(cell: type[nn.RNNBase]) -> tuple[nn.Module, Any]:
    return Translator(cell), (torch.randint(1000, (8, 20)), torch.randint(1000, (8, 15)))


def denoiser() -> tuple[nn.Module, Any]:
    return Denoiser(), (torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64))


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "denoiser": denoiser,
    "tied": lambda: (Tied(), torch.randint(2000, (20, 8))),
    "encoder": lambda: (nn.TransformerEncoderLayer(64, 4, 256, 0.1, batch_first=True), torch.randn(8, 50, 64)),
    "wide": lambda: (Wide(), torch.randn(4, 400)),
    "gru": lambda: translator(nn.GRU),
    "lstm": lambda: translator(nn.LSTM),
    "rnn": lambda: translator(nn.RNN),
    "head": lambda: (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 512)), torch.randn(128, 16)),
}


def measured(model: nn.Module, sample: Any, kept: bool = False) -> int:
    """Bytes of the second step of an eager loop that holds its results, everything included."""
    args = sample if isinstance(sample, tuple) else (sample,)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        result = model(*args)
        loss = default_loss(result)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    if not kept:
        optimizer.zero_grad()
    state = [t for s in optimizer.state.values() for t in s.values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    held = [*model.parameters(), *model.buffers(), *args, *state, *gradients]
    before = sum({t.data_ptr(): t.untyped_storage().nbytes() for t in held}.values())
    return before + allocator_peak(step).peak_bytes


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_estimate_is_what_a_step_takes(name: str, kept: bool) -> None:
    model, sample = MODELS[name]()
    found = rekindle.estimate(model, sample, gradients="kept" if kept else "none", progress=False)
    assert found.peak_bytes == pytest.approx(measured(model, sample, kept), rel=0.01)
    assert found.peak_bytes == sum(getattr(found, field) for _, field in PARTS)
    assert found.peak_bytes == dict(found.phases)[found.phase] == max(dict(found.phases).values())
    assert min(getattr(found, field) for _, field in PARTS) >= 0
    assert found.parameter_bytes == sum(p.numel() * 4 for p in model.parameters())


def test_where_the_peak_is() -> None:
    assert rekindle.estimate(*MODELS["wide"](), progress=False).phase == "optimizer step"
    found = rekindle.estimate(*MODELS["denoiser"](), progress=False)
    assert found.phase != "optimizer step"
    assert any(x in found.op for x in ("down", "mid", "up"))
    assert len(found.modules) <= 10
    assert found.modules[0].saved_bytes == max(m.saved_bytes for m in found.modules)
    assert {"down.0", "down.1"} <= {m.path for m in found.modules}
    assert 0 < found.floor_bytes <= found.peak_bytes


def test_the_model_and_the_random_state_stay_as_they_are() -> None:
    model, sample = denoiser()
    model.eval()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    attributes = {k: list(m.__dict__) for k, m in model.named_modules()}
    rekindle.estimate(model, sample, progress=False)
    assert all(torch.equal(x, before[k]) for k, x in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert {k: list(m.__dict__) for k, m in model.named_modules()} == attributes
    assert all(p.grad is None for p in model.parameters())
    assert not model.training


def test_the_meta_device_and_fake_tensors_give_the_same() -> None:
    model, sample = denoiser()
    real = rekindle.estimate(model, sample, progress=False)
    on_meta = rekindle.estimate(copy.deepcopy(model).to("meta"), tuple(t.to("meta") for t in sample), progress=False)
    mixed = rekindle.estimate(copy.deepcopy(model).to("meta"), sample, progress=False)
    with FakeTensorMode():
        fake = denoiser()
    faked = rekindle.estimate(*fake, progress=False)
    assert real.peak_bytes == on_meta.peak_bytes == mixed.peak_bytes == faked.peak_bytes


def test_optimizers() -> None:
    model, sample = MODELS["wide"]()
    size = sum(p.numel() * 4 for p in model.parameters())
    stepped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for given, state in (("sgd", 0), (stepped, size), (torch.optim.SGD, 0), (None, 0)):
        found = rekindle.estimate(model, sample, given, progress=False)
        assert found.optimizer_bytes == state
        assert ("optimizer step" in dict(found.phases)) == (given is not None)
    assert not stepped.state
    found = rekindle.estimate(model, sample, "lbfgs", progress=False)  # its step needs a closure
    assert any("not counted" in note for note in found.notes)


def test_a_gpu_counts_rounding_and_the_framework() -> None:
    model, sample = MODELS["encoder"]()
    here, there = (rekindle.estimate(model, sample, target=t, progress=False) for t in (None, "h200"))
    assert here.rounding_bytes == here.overhead_bytes == 0
    assert there.overhead_bytes > 0
    assert there.rounding_bytes > 0
    assert there.activation_bytes < here.activation_bytes  # masks of dropout are bytes
    assert there.band is None
    assert any("not counted" in note for note in there.notes)


def test_a_planned_model_is_estimated_plain() -> None:
    model, sample = MODELS["denoiser"]()
    plain = rekindle.estimate(model, sample, progress=False)
    plan = rekindle.plan(rekindle.trace(model, sample, progress=False), 1.0, solver="none", progress=False)
    rekindle.apply(model, plan)
    assert rekindle.estimate(model, sample, progress=False).peak_bytes == plain.peak_bytes
    assert hasattr(model.forward, "plan")


def test_hooks_leave_nothing_behind() -> None:
    seen: list[Tensor] = []
    model = Wide()
    model.layers[0].register_forward_hook(lambda m, args, out: seen.append(out))
    rekindle.estimate(model, torch.randn(2, 400), progress=False)
    assert not seen


def test_a_step_that_an_optimizer_refuses_is_said() -> None:
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2))
    found = rekindle.estimate(model, torch.randint(50, (4, 3)), progress=False)  # AdamW takes no sparse gradients
    assert any("sparse" in note for note in found.notes)


class Fails(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :3])


def test_errors_name_what_is_wrong() -> None:
    model, sample = Wide(), torch.randn(2, 400)
    with pytest.raises(TraceError, match="test_estimate"):
        rekindle.estimate(Fails(4, 2), torch.randn(2, 4), progress=False)
    with pytest.raises(UsageError, match="gradients"):
        rekindle.estimate(model, sample, gradients="some")
    with pytest.raises(UsageError, match="unknown"):
        rekindle.estimate(model, sample, "adamx")
    with pytest.raises(UsageError, match="unknown"):
        rekindle.estimate(model, sample, target="h900")
    with pytest.raises(UsageError, match="make_sample"):
        rekindle.largest_batch(model, sample, "1GiB")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="fraction"):
        rekindle.largest_batch(model, lambda b: sample, 0.5)  # type: ignore[arg-type]


def test_a_loss_of_the_users_own() -> None:
    model, sample = Wide(), torch.randn(512, 400)
    summed = rekindle.estimate(model, sample, None, progress=False)
    squared = rekindle.estimate(model, sample, None, loss=lambda out: out.pow(2).mean(), progress=False)
    assert squared.activation_bytes > summed.activation_bytes


def test_copies_to_the_host_are_planned_with_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def plan(graph: Graph, options: PlanOptions, **how: Any) -> Plan:
        asked.append((graph.link is not None, options.offload, options.host_budget))
        return plan_graph(graph, replace(options, offload=False, host_budget=None, solver="every"), **how)

    monkeypatch.setattr(planned_batches, "plan_graph", plan)
    how: dict[str, Any] = {"effort": "quick", "first": 256, "progress": False}
    for offload, linked in ((True, True), ("auto", False)):  # on a CPU the host is the device
        asked.clear()
        rekindle.largest_batch(
            Wide(), lambda b: torch.randn(b, 400), 12 * MIB, "sgd", offload=offload, host_budget=MIB, **how
        )
        assert set(asked) == {(linked, offload, MIB)}
    with pytest.raises(UsageError, match="offload"):
        rekindle.largest_batch(Wide(), lambda b: torch.randn(b, 400), "1GiB", offload="always")


def test_the_largest_batch_is_the_largest() -> None:
    torch.manual_seed(0)
    model, budget = Denoiser(), 12 * MIB

    def make(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3, 64, 64), torch.randn(batch, 3, 64, 64)

    found = rekindle.largest_batch(model, make, budget, effort="quick", progress=False)
    assert 0 < found.plain < found
    assert measured(copy.deepcopy(model), make(found.plain)) <= budget
    assert measured(copy.deepcopy(model), make(found.plain + 1)) > budget
    for batch, fits in ((int(found), True), (found + 1, False)):
        trace = rekindle.trace(model, make(batch), optimizer="adamw", progress=False)
        if fits:
            assert rekindle.plan(trace, budget, effort="quick", progress=False).peak_bytes <= budget
        else:
            with pytest.raises(rekindle.InfeasibleBudget):
                rekindle.plan(trace, budget, effort="quick", progress=False)
    assert found.plan is not None
    assert found.plan.peak_bytes <= budget
    assert found.overhead == found.plan.overhead
    assert [r.fits for r in found.rows] == sorted(
        (r.fits for r in found.rows), key=["plain", "with a plan", "no"].index
    )


def batches_of_a_chain(share: float) -> PlannedBatches:
    """Batches of a chain of layers with modelled costs, within this share of the activations of 8,192 examples."""
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)]
    request = EstimateRequest.of_user(nn.Sequential(*layers), "sgd", "h200", progress=False)

    def make(batch: int) -> Tensor:
        return torch.empty(batch, 256)

    e = request.of(make(8192))
    limit = e.peak_bytes - int((1 - share) * e.activation_bytes)
    options = PlanOptions(Budget(limit), effort="quick", progress=False)
    planned = Model(request.model, make, "sgd", "h200", "fresh")
    return PlannedBatches(planned, limit, options, lambda batch: request.of(make(batch)))


def test_a_batch_costs_no_more_than_the_schedule_of_a_larger_one() -> None:
    batches = batches_of_a_chain(0.6)
    assert batches.need(8192) <= batches._limit
    larger = batches.plans[8192]
    batches._options = replace(batches._options, solver="chen-sqrt")  # it finds dear plans
    alone = batches._plan(7168, batches.budget(7168))
    assert batches.need(7168) <= batches._limit
    found = batches.plans[7168]
    assert larger is not None
    assert found is not None
    assert (
        found.overhead <= 1.05 * larger.overhead < alone.overhead
    )  # of a smaller step, fixed times are a larger share


def test_a_smaller_plan_found_later_betters_a_batch() -> None:
    batches = batches_of_a_chain(0.6)
    batches._options = replace(batches._options, solver="chen-sqrt")
    batches.need(7168)
    before = batches.plans[7168]
    batches._options = replace(batches._options, solver="auto")
    batches.need(8192)
    batches.settle(7168)
    after, larger = batches.plans[7168], batches.plans[8192]
    assert before is not None
    assert after is not None
    assert larger is not None
    assert after.overhead <= 1.05 * larger.overhead < before.overhead
    assert batches.needs[7168] <= batches._limit


def test_one_search_for_the_smallest_plan_serves_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def plan(graph: Graph, options: PlanOptions, **how: Any) -> Plan:
        searched.append(options.goal)
        return plan_graph(graph, options, **how)

    monkeypatch.setattr(planned_batches, "plan_graph", plan)
    batches = batches_of_a_chain(0.6)
    sizes = [batches.at_least(b) for b in (4096, 8192, 12288)]
    assert sizes == sorted(sizes)
    assert searched == [LeastMemory()]


def test_no_is_said_where_it_is_proven() -> None:
    batches = batches_of_a_chain(0.1)
    assert batches.need(8192) > batches._limit
    assert batches.plans[8192] is None
    assert batches.proven == {8192}
    batches = batches_of_a_chain(0.2)  # above the bound, but what is asked for finds nothing there
    batches._options = replace(batches._options, solver="chen-sqrt")
    assert batches.need(8192) > batches._limit
    assert batches.proven == set()


def test_other_batches_repeat_the_examples() -> None:
    ids, mask, scale = torch.arange(6).reshape(3, 2), torch.ones(3, 2), torch.ones(())
    others = OtherBatches({"ids": ids, "mask": mask, "scale": scale})
    assert (others.batch, others.resized) == (3, 2)
    made = others(5)
    assert torch.equal(made["ids"], torch.cat([ids, ids[:2]]))
    assert made["scale"] is scale
    assert OtherBatches(ids)(2).shape == (2, 2)
    assert isinstance(OtherBatches((ids,))(4), tuple)
    with pytest.raises(UsageError, match="dimension"):
        OtherBatches(scale)


def test_the_command(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    ran = Ran(capfd, "estimate", "zoo:gpt", "--batch", 2, "--target", "h200", "--json")
    assert ran.code == 0
    assert ran.document["format"] == "rekindle.estimate/1"
    assert (ran.document["device"], ran.document["optimizer"]) == ("h200", "adamw")
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def make():\n    return torch.nn.Linear(8, 8), torch.randn(3, 8)\n"
        "def sized(batch=3):\n    return torch.nn.Linear(8, 8), torch.randn(batch, 8)\n"
    )
    ran = Ran(capfd, "estimate", f"{file}:sized", "--device", "64KiB", "--batch", 7, "--no-plans", "--json")
    assert ran.code == 0
    rows = {r["batch"]: r for r in ran.document["batches"]}
    assert rows[7]["plain_bytes"] == ran.document["peak_bytes"]
    assert ran.document["more"] is False
    assert ran.document["largest_batch"] == ran.document["largest_batch_plain"] > 7
    ran = Ran(capfd, "estimate", f"{file}:make", "--device", "64KiB")
    assert ran.code == 0
    assert "the batch is the first dimension, 3, of 1 of the sample's 1 tensors" in ran.out
    assert "with one" in ran.out or "no larger one with a plan" in ran.out
    assert Ran(capfd, "estimate", f"{file}:make", "--device", "0.5").code == 2
    assert Ran(capfd, "estimate", "zoo:nothing").code == 2


def test_rows_are_printed_as_they_come(
    capfd: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []

    def need(self: PlannedBatches, batch: int) -> int:
        printed.append(capfd.readouterr().out)
        return plain(self, batch)

    plain = PlannedBatches.need
    monkeypatch.setattr(PlannedBatches, "need", need)
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def make(batch=64):\n    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)]\n"
        "    return nn.Sequential(*layers), torch.randn(batch, 64)\n"
    )
    ran = Ran(capfd, "estimate", f"{file}:make", "--device", "1MiB", "--optimizer", "sgd")
    assert ran.code == 0
    first, *later = printed
    assert "memory of a plain step" in first
    assert "by batch, within 1.0 MiB" in first
    assert first.splitlines()[-1].split()[-1] == "plain"
    assert any(line.rstrip().endswith("with a plan") for x in later for line in x.splitlines())
    whole = "".join([*printed, ran.out]).splitlines()
    begin = next(i for i, line in enumerate(whole) if line.startswith("by batch")) + 1
    table = whole[begin : whole.index("", begin)]
    assert len(table) > 4
    assert len({len(line) for line in table}) == 1


def test_no_larger_batch_is_tried_when_the_time_is_over() -> None:
    batches = batches_of_a_chain(0.6)
    planned = batches._model
    request = EstimateRequest.of_user(planned.model, "sgd", "h200", progress=False)
    options = replace(batches._options, goal=Budget(batches._limit))
    found = BatchSearch(request, planned.make_sample, options, "fresh", most_s=0.0).largest(4096)
    assert found.more
    assert found > found.plain
    assert found.sentence.endswith("; larger ones were not tried, which a higher effort does")


def test_a_mistake_of_our_own_is_no_kernel_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(like: object) -> None:
        raise AttributeError("no such method")

    monkeypatch.setattr(kernel_memory, "made_up", wrong)
    with pytest.raises(AttributeError):
        rekindle.estimate(nn.Conv2d(8, 8, 3), torch.rand(4, 8, 16, 16))
