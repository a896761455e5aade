"""Results that the training loop does not read: planned calls return None in their place and hold nothing for them."""

from __future__ import annotations

import copy
import json
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from command_line import Ran
from marks import every, sweep
from rekindle.torch.serve.verify import check_step
from rekindle.torch.tensors import tree
from steps_compared import QUICK

HOW: dict[str, Any] = QUICK | {"cost": "flops", "progress": False}
WIDE = 512  # results of the head, each 16 times as wide as its input
Pair = namedtuple("Pair", ["loss", "logits"])


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor | None
    more: Any = None


class Registry(OrderedDict):  # type: ignore[type-arg]
    pass


class Net(nn.Module):
    """A loss and what it is made of. The unused head draws random numbers, and writes a buffer."""

    def __init__(self, answer: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.head, self.answer = nn.Linear(32, 32), nn.Linear(32, WIDE), answer
        self.aside = nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.a(x))
        logits = self.head(h)
        return self.answer(logits.logsumexp(1).mean(), logits + self.aside(h).sum())


KINDS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str, Callable[[Any], tuple[Tensor, Any]]]] = {
    "a tuple": (lambda a, y: (a, y), "1", lambda r: (r[0], r[1])),
    "a list": (lambda a, y: [a, y], "1", lambda r: (r[0], r[1])),
    "a dict": (lambda a, y: {"loss": a, "logits": y}, "logits", lambda r: (r["loss"], r["logits"])),
    "an ordered dict": (lambda a, y: Registry(loss=a, y=y), "y", lambda r: (r["loss"], r["y"])),
    "a nested dict": (lambda a, y: {"a": [{"loss": a}], "b": ({"c": y},)}, "b.0.c",
                      lambda r: (r["a"][0]["loss"], r["b"][0]["c"])),
    "a whole tuple": (lambda a, y: {"loss": a, "b": (y, [y + 1])}, "b", lambda r: (r["loss"], r["b"])),
    "keys with dots": (lambda a, y: {"loss": a, "b.c": y}, "b.c", lambda r: (r["loss"], r["b.c"])),
    "a dataclass": (Answer, "logits", lambda r: (r.loss, r.logits)),
    "a field of a field": (lambda a, y: Answer(a, None, {"y": y}), "more.y", lambda r: (r.loss, r.more["y"])),
    "a named tuple": (Pair, "logits", lambda r: (r.loss, r.logits)),
    "a named tuple by number": (Pair, "1", lambda r: (r.loss, r.logits)),
}  # fmt: skip


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def stepped(model: nn.Module, call: Callable[[], Tensor]) -> list[Tensor | None]:
    """The loss, gradients, buffers and random state of a step, of which `call` gives the loss."""
    torch.manual_seed(3)
    model.zero_grad()
    loss = call()
    loss.backward()
    state = [*model.buffers(), torch.get_rng_state()]
    return [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters()), *state]


def equal(one: list[Tensor | None], two: list[Tensor | None]) -> bool:
    return len(one) == len(two) and all(
        (a is b) if a is None or b is None else a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(one, two, strict=True)
    )


class Called:
    """A call that keeps its result."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.batch, self.result = model, batch, None

    def __call__(self) -> Any:
        self.result = self.model(self.batch)
        return self.result


@pytest.mark.parametrize("kind", every(4, KINDS))
def test_a_planned_call_returns_none_there_and_the_rest_as_eager(kind: str) -> None:
    answer, name, taken = KINDS[kind]
    torch.manual_seed(0)
    model, x = Net(answer), torch.rand(16, 32)
    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rekindle.checkpoint(model, x, unused=[name], **HOW)
        assert rekindle.verify(model, x).ok
        for batch in (x, torch.rand(8, 32), torch.rand(12, 32)):  # new shapes get plans that leave it out too
            ours, theirs = Called(model, batch), Called(twin, batch)
            assert equal(stepped(model, lambda c=ours: taken(c())[0]), stepped(twin, lambda c=theirs: taken(c())[0]))
            assert type(ours.result) is type(theirs.result)
            assert taken(ours.result)[1] is None
        assert len([*model.forward.bounds]) == 3  # type: ignore[union-attr]
        # in eval(), under no_grad and in a plain step it is there
        with torch.no_grad():
            assert isinstance(tree.flatten(model(x))[0][-1], Tensor)
            assert taken(model(x))[1] is not None
        assert taken(model.eval()(x))[1] is not None
    assert taken(rekindle.restore(model.train())(x))[1] is not None


@sweep
def test_a_small_gpt2_without_its_logits() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=2000, n_positions=32, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    model, ids = transformers.GPT2LMHeadModel(config).train(), torch.randint(0, 2000, (4, 32))
    twin, sample = copy.deepcopy(model), {"input_ids": ids, "labels": ids}
    rekindle.checkpoint(model, sample, unused="logits", **HOW)
    out = model(**sample)
    assert (type(out), [*out.keys()]) == (type(twin(**sample)), ["loss"])
    assert out.logits is None
    assert len(out.to_tuple()) == 1
    assert equal(
        stepped(model, lambda: model(**sample)["loss"]), stepped(twin, lambda: twin(**sample).loss)
    )  # with dropout
    with torch.no_grad():
        assert model(**sample).logits.shape == (4, 32, 2000)
    with pytest.warns(rekindle.RekindleWarning, match="without 'logits' no result is left.*run plain"):
        assert model(input_ids=ids).logits.requires_grad


def test_a_loop_that_holds_its_results_takes_less() -> None:
    """The logits are held by nobody: neither where forward ends nor until backward is over."""
    torch.manual_seed(0)
    model, x = Net(lambda a, y: {"loss": a, "logits": (y, y + 1, y + 2)}), torch.rand(256, 32)
    logits = 256 * WIDE * 4  # bytes of each of the three
    peaks = []
    for unused in ((), ("logits",)):
        plan = rekindle.plan(rekindle.trace(model, x, unused=unused), budget=1.0, solver="none", cost="flops")
        check = check_step(model, x, plan, held=True)
        assert check.ok
        assert abs(check.peak_error) < 0.02
        peaks.append((check.measured_peak_bytes, check.held_peak_bytes or 0))
    assert peaks[0][0] - peaks[1][0] > 1.9 * logits  # backward itself needs one more
    assert peaks[0][1] - peaks[1][1] > 2.9 * logits


def test_a_plan_file_carries_the_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(Answer), torch.rand(16, 32)
    twin, path = copy.deepcopy(model), tmp_path / "plan.json"
    made = rekindle.plan(
        rekindle.trace(model, x, unused=["logits"]), minimize="memory", solver="storages", cost="flops"
    )
    made.save(path)
    rekindle.apply(model, rekindle.load(path))
    for rows in (16, 8):
        batch = torch.rand(rows, 32)
        ours, theirs = Called(model, batch), Called(twin, batch)
        assert equal(stepped(model, lambda c=ours: c().loss), stepped(twin, lambda c=theirs: c().loss))
        assert ours.result.logits is None
    assert [b.trace.options.unused for b in model.forward.bounds] == [("logits",)] * 2  # type: ignore[union-attr]
    doc = json.loads(path.read_text())
    assert doc["options"]["unused"] == ["logits"]
    del doc["options"]["unused"]
    path.write_text(json.dumps(doc))
    rekindle.apply(twin, rekindle.load(path))
    with pytest.raises(rekindle.PlanMismatch):  # the step that makes all results is another graph
        twin(x)


class Shared(nn.Module):
    """Results that are, or share memory with, an input, a buffer, or a result that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.a(x).sin()
        return {"y": y, "view": y[1:], "again": y, "x": x, "scale": self.scale, "other": self.other(x).exp()}


SHARED = ["y", "view", "again", "x", "scale", "other"]


@pytest.mark.parametrize("name", every(3, SHARED))
def test_results_that_share_memory_with_a_left_out_one_stay(name: str) -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.rand(16, 8, requires_grad=True)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, x, unused=[name], **HOW)
    ours, theirs = model(x), twin(x)
    for k in SHARED:
        if k == name:
            assert ours[k] is None
        else:
            assert same_bits(ours[k], theirs[k]), k
    kept = [k for k in SHARED if k != name and theirs[k].requires_grad]

    def loss(m: nn.Module) -> Tensor:
        out = m(x)
        return sum((out[k].square().sum() for k in kept), torch.zeros(()))

    assert equal(stepped(model, lambda: loss(model)), stepped(twin, lambda: loss(twin)))


@pytest.mark.parametrize(
    ("unused", "says"),
    [
        (["logit"], "'logit' names no result of Net; did you mean 'logits'. its results are loss, logits"),
        (["logits", "hidden"], "'hidden' names no result"),
        (["loss"], "'loss' is the loss"),
        (["logits", "loss"], "is the loss"),
        ([3], "must be names of results"), (3, "must be names of results"), (None, "must be names of results"),
        ("", "must be names of results"), (["a\x1b[2J"], "must be names of results"),
    ],
)  # fmt: skip
def test_names_that_make_no_sense(unused: Any, says: str) -> None:
    model, x = Net(lambda a, y: {"loss": a, "logits": y}), torch.rand(16, 32)
    for call in (rekindle.trace, lambda *a, **k: rekindle.checkpoint(*a, **k, **HOW)):
        with pytest.raises(rekindle.UsageError, match=says):
            call(model, x, unused=unused)
    assert "forward" not in model.__dict__


def test_without_any_result_that_trains() -> None:
    x = torch.rand(16, 32)
    both = Net(lambda a, y: {"y": y, "number": y.detach().argmax()})
    with pytest.raises(rekindle.UsageError, match="without 'y' no result is left"):
        rekindle.trace(both, x, unused=["y"])
    with pytest.raises(rekindle.UsageError, match="returns one tensor and no container"):
        rekindle.trace(Net(lambda a, y: y), x, unused=["y"])
    # where a gradient comes back to every result, the model's own loss may be one that the loop does not read
    model = Net(lambda a, y: {"loss": a, "logits": y})
    trace = rekindle.trace(model, x, loss="all", unused=["loss"])
    rekindle.apply(model, rekindle.plan(trace, minimize="memory", solver="storages"))
    assert rekindle.verify(model, x, loss=lambda out: out["logits"].sum()).ok


def test_a_plan_takes_the_names_of_its_trace() -> None:
    model, x = Net(Answer), torch.rand(16, 32)
    trace = rekindle.trace(model, x, unused=["logits"])
    for names in (None, "logits", ["logits"]):
        assert rekindle.plan(trace, 1.0, solver="none", unused=names).trace_options.unused == ("logits",)
    assert rekindle.frontier(trace, solver="none", unused=["logits"])[0].trace_options.unused == ("logits",)
    for make in (rekindle.plan, rekindle.frontier):
        goal = {"budget": 1.0} if make is rekindle.plan else {}
        with pytest.raises(rekindle.UsageError, match=r"made with unused=\['logits'\]; name the results when"):
            make(trace, solver="none", unused=["more"], **goal)
        with pytest.raises(rekindle.UsageError, match="makes all results"):
            make(rekindle.trace(model, x), solver="none", unused=["logits"], **goal)
        with pytest.raises(rekindle.UsageError, match="a bare Graph does not know"):
            make(trace.graph, solver="none", unused=["logits"], **goal)


def test_a_call_without_the_named_result_is_planned() -> None:
    """Forward returns it in some calls only: a later call that does not is planned all the same."""

    class Sometimes(Net):
        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            return out if len(x) > 8 else {"loss": out["loss"]}

    model, x = Sometimes(lambda a, y: {"loss": a, "logits": y}), torch.rand(16, 32)
    rekindle.checkpoint(model, x, unused=["logits"], **HOW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [*model(x[:4])] == ["loss"]
    assert len([*model.forward.bounds]) == 2  # type: ignore[union-attr]


def test_plans_of_parts_make_all_results(capfd: pytest.CaptureFixture[str]) -> None:
    class Deciding(Net):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x * 2 if x.sum().item() > 0 else x * float(x.max()))

    model, x = Deciding(lambda a, y: {"loss": a, "logits": y}), torch.rand(16, 32)
    with pytest.raises(rekindle.UsageError, match="parts="):
        rekindle.checkpoint(model, x, unused=["logits"], parts=["head"], **HOW)
    model.a = nn.Sequential(nn.Linear(32, 32), *(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)))
    rekindle.checkpoint(model, x, unused=["logits"], **(HOW | {"progress": None}))
    assert "it makes all results, logits too" in capfd.readouterr().err
    assert model(x)["logits"] is not None


MAKES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(8, 8), nn.Linear(8, 64)

    def forward(self, x):
        y = self.head(self.a(x).relu())
        return {"loss": y.logsumexp(1).mean(), "logits": y, "more": (y + 1,)}

def make(batch=16):
    return Net(), torch.rand(batch, 8)
"""


def test_commands_take_the_names_and_the_parity(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(MAKES)
    model, file = f"{tmp_path / 'net.py'}:make", tmp_path / "plan.json"
    named, quick = ("--unused", "logits", "--unused", "more.0"), ("--solver", "none", "--cost", "unit")
    made = Ran(capfd, "plan", model, "--budget", "1.0", *named, "--parity", "close", *quick, "--out", file)
    assert (made.code, made.err) == (0, "")
    plan = rekindle.load(file)
    assert (plan.options.parity, plan.trace_options.unused) == ("close", ("logits", "more.0"))
    trace = Ran(capfd, "trace", model, *named, "--json").document
    curve = Ran(capfd, "frontier", model, *named, *quick, "--json").document
    assert trace["graph_hash"] == curve["plans"][0]["graph_hash"] == plan.graph_hash
    assert Ran(capfd, "trace", model, "--json").document["graph_hash"] != plan.graph_hash
    for command, says in (
        (("plan", model, "--budget", "1.0", "--unused", "logit"), "did you mean 'logits'"),
        (("plan", model, "--budget", "1.0", "--parity", "exact"), "--parity exact is unknown"),
        (("frontier", model, "--unused", "loss"), "is the loss"),
        (("frontier", file, "--unused", "logits"), "--unused and --gradients need a model"),
    ):
        ran = Ran(capfd, *command)
        assert ran.code == 2
        assert says in ran.err
