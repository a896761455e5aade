"""Models that change themselves in every way that is known are bit for bit as before, whatever the verb, success or failure."""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import random
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import rekindle
from marks import every, sweep
from rekindle.torch.measure.as_before import as_before, same
from rekindle.torch.tensors.op_tensors import content_bytes
from rekindle.torch.undo import tensor_state
from rekindle.torch.undo.tensor_state import fingerprint
from strategies import examples

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = (8, 8)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(SHAPE))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.seen


class Slots:
    __slots__ = ("later", "x")

    def __init__(self) -> None:
        self.x = 0


class Model(nn.Module):
    """before, after : changes of itself that forward makes, and when. raises : the exception at its end, or None."""

    calls = 0

    def __init__(self, before: list[Change], after: list[Change], raises: type[BaseException] | None = None):
        super().__init__()
        self.a, self.b, self.unused = Inner(), Inner(), Inner()
        self.weight, self.frozen = nn.Parameter(torch.rand(SHAPE)), nn.Parameter(torch.rand(SHAPE), requires_grad=False)
        self.tied = self.weight
        self.alias = nn.Parameter(self.frozen.detach(), requires_grad=False)  # another object in the same memory
        self.register_buffer("square", torch.rand(SHAPE))
        self.register_buffer("flat", torch.rand(3, *SHAPE))
        self.register_buffer("first", self.flat[0])
        self.register_buffer("second", self.flat[1].t())
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("wide", torch.rand(8, 1).expand(SHAPE))
        self.register_buffer("none", None)
        self.plain = torch.rand(SHAPE)
        self.items, self.table = [torch.rand(SHAPE), torch.rand(SHAPE)], {"a": torch.rand(SHAPE), 1: [1, 2]}
        self.queue: collections.deque[Any] = collections.deque([1, 2], maxlen=3)
        self.object, self.array, self.count = SimpleNamespace(x=1, t=torch.rand(SHAPE)), np.arange(8.0), 0
        self.slots = Slots()
        self.held = [self.weight, self.frozen, self.square]  # tensors of the module, past its tables
        self.before, self.after, self.raises = tuple(before), tuple(after), raises

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for change in self.before:
                change(self)
        h = self.b(self.a(x).tanh().sin()) @ self.weight
        h = h + self.square + self.first + self.frozen + self.plain + self.items[0]
        with torch.no_grad():
            for change in self.after:
                change(self)
        if self.raises is not None:
            raise self.raises("forward fails")
        return h.sin()


Change = Callable[[Model], Any]
TENSORS = ("weight", "frozen", "alias", "square", "flat", "first", "second", "plain", "wide", "empty")


def tensor(m: Model, name: str) -> Tensor:
    t: Tensor = getattr(m, name)
    return t


def of_tensor(change: Callable[[Tensor], Any]) -> Callable[[str], Change]:
    return lambda name: lambda m: change(tensor(m, name))


def new_buffer(name: str) -> Change:
    def change(m: Model) -> None:
        if name in m._buffers:
            m.register_buffer(name, tensor(m, name) * 0.5)

    return change


def new_parameter(name: str) -> Change:
    def change(m: Model) -> None:
        if name in m._parameters:
            setattr(m, name, nn.Parameter(tensor(m, name) * 0.5, requires_grad=tensor(m, name).requires_grad))

    return change


def deleted_and_added(name: str) -> Change:
    def change(m: Model) -> None:
        t = tensor(m, name)
        delattr(m, name)
        setattr(m, name, t)

    return change


def moved_memory(t: Tensor) -> None:
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(8192)
    t.fill_(0.5)


OF_TENSORS: dict[str, Callable[[str], Change]] = {
    "in place": of_tensor(lambda t: t.mul_(0.5)),
    "through data": of_tensor(lambda t: t.data.mul_(0.5)),
    "data": of_tensor(lambda t: setattr(t, "data", t.data * 0.5)),
    "data of another shape": of_tensor(lambda t: setattr(t, "data", t.data.reshape(-1).clone())),
    "set_": of_tensor(lambda t: t.set_(t.detach() * 0.5)),
    "resize_": of_tensor(lambda t: t.data.resize_(5)),
    "resize_ of itself": of_tensor(lambda t: t.resize_(16, 16)),
    "as_strided_": of_tensor(lambda t: t.as_strided_((2, 2), (1, 2))),
    "t_": of_tensor(lambda t: t.transpose_(0, -1)),
    "memory": of_tensor(moved_memory),
    "numpy": of_tensor(lambda t: t.detach().numpy().fill(2)),
    "requires_grad": of_tensor(lambda t: t.requires_grad_(not t.requires_grad)),
    "gradient": of_tensor(lambda t: setattr(t, "grad", torch.ones_like(t))),
    "gradient in place": of_tensor(lambda t: t.grad is None or t.grad.mul_(2)),
    "hook": of_tensor(lambda t: t.requires_grad and t.register_hook(lambda g: g)),
    "field": of_tensor(lambda t: setattr(t, "tag", 1)),
    "new buffer": new_buffer, "new parameter": new_parameter, "deleted and added": deleted_and_added,
}  # fmt: skip
OTHERS: dict[str, Change] = {
    "item in place": lambda m: m.items[0].mul_(2),
    "item replaced": lambda m: m.items.__setitem__(0, m.items[0] * 2),
    "item's data": lambda m: setattr(m.items[1], "data", m.items[1] * 2),
    "item appended": lambda m: m.items.append(torch.rand(SHAPE)),
    "grown": lambda m: setattr(m, "empty", torch.cat([m.empty, torch.ones(4)])),
    "table": lambda m: (m.table.update(b=1), m.table.pop("a", None), m.table[1].append(3)),
    "queue": lambda m: m.queue.append(m.count),
    "object": lambda m: (setattr(m.object, "x", m.object.x + 1), m.object.t.mul_(2)),
    "slots": lambda m: (setattr(m.slots, "x", m.slots.x + 1), setattr(m.slots, "later", 1)),
    "class variable": lambda m: setattr(Model, "calls", Model.calls + 1),
    "array": lambda m: m.array.__iadd__(1),
    "count": lambda m: setattr(m, "count", m.count + 1),
    "new attribute": lambda m: setattr(m, "later", torch.ones(2)),
    "module swapped": lambda m: setattr(m, "b", m.unused),
    "module new": lambda m: m.add_module("more", nn.Linear(2, 2)),
    "module deleted": lambda m: m._modules.pop("unused", None),
    "modules' order": lambda m: m._modules.__setitem__("a", m._modules.pop("a")),
    "mode": lambda m: m.train(not m.training),
    "class": lambda m: setattr(m.unused, "__class__", nn.Identity),
    "hook of a module": lambda m: m.a.register_forward_hook(lambda *_: None),
    "random": lambda m: (torch.manual_seed(1), random.seed(1), np.random.seed(1)),
    "through a list": lambda m: m.held[0].data.add_(1),
    "data in a list": lambda m: setattr(m.held[1], "data", m.held[1].data + 1),
    "numpy in a list": lambda m: m.held[2].numpy().fill(3),
    "flag in a list": lambda m: m.held[1].requires_grad_(True),
    "all": lambda m: m.load_state_dict({k: t * 0.5 for k, t in m.state_dict().items()}),
    "cast": lambda m: m.unused.double(),
}  # fmt: skip
REALLOCATES = ("memory", "resize_ of itself")  # memory that forward frees itself comes back at another address
# torch never again resizes memory that `numpy()` has looked at: its size cannot be put back then, as an error says
RESIZES, FIXES = {*REALLOCATES, "resize_"}, {"numpy", "numpy in a list"}

tensor_changes = st.tuples(st.sampled_from([*OF_TENSORS]), st.sampled_from(TENSORS))
changes = st.one_of(tensor_changes, st.sampled_from([*OTHERS]))
errors = st.sampled_from([None, None, None, ValueError, KeyboardInterrupt])
CALLS = itertools.count()  # which no verb can put back


def made(change: Any, only_at: int | None) -> Change:
    """only_at : the number of the call since the model was made that changes anything; None: each."""
    does = OTHERS[change] if isinstance(change, str) else OF_TENSORS[change[0]](change[1])
    begin = next(CALLS)

    def guarded(m: Model) -> None:
        if only_at is None or next(CALLS) - begin == only_at:
            with contextlib.suppress(RuntimeError, AttributeError, TypeError, KeyError, IndexError):
                does(m)  # a change that eager refuses is none

    return guarded


@st.composite
def models(draw: st.DrawFn) -> tuple[Model, bool]:
    """(a model, whether its memory may come back at another address)."""
    drawn = draw(st.lists(changes, min_size=1, max_size=3))
    kinds = {c if isinstance(c, str) else c[0] for c in drawn}
    assume(not (kinds & RESIZES and kinds & FIXES))
    only_at = draw(st.sampled_from([None, None, 1, 2, 5]))
    cut = draw(st.integers(0, len(drawn)))
    made_of = [made(c, only_at) for c in drawn]
    torch.manual_seed(0)
    model = Model(made_of[:cut], made_of[cut:], draw(errors))
    if draw(st.booleans()):
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None
        model.weight.register_hook(lambda g: g)
        model.a.weight.register_post_accumulate_grad_hook(lambda p: None)
    return model, any(c[0] in REALLOCATES for c in drawn)


def content(t: Tensor) -> bytes:
    memory = t.untyped_storage()  # of which `numpy()` would make one that can never be resized again
    return torch.empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,)).clone().numpy().tobytes()


def of_tensor_now(t: Tensor, reallocates: bool) -> Any:
    shape = t.shape, t.stride(), t.storage_offset(), t.dtype
    flags = (
        t.requires_grad,
        t.is_leaf,
        id(t.grad) if t.is_leaf else 0,
        [*vars(t)],
        [*(t._backward_hooks or {}), *(t._post_accumulate_grad_hooks or {})],
    )
    return id(t), shape, flags, t.untyped_storage()._cdata, 0 if reallocates else t.data_ptr(), content(t)


def look(m: Model, reallocates: bool) -> Any:
    """All that must stay, as one value."""
    tensors = {
        f"{at}.{k}": t for at, x in m.named_modules()
        for d in (x._parameters, x._buffers, vars(x)) for k, t in d.items() if isinstance(t, Tensor)
    }  # fmt: skip
    tensors |= {f"items {i}": t for i, t in enumerate(m.items)} | {"object": m.object.t, "table": m.table["a"]}
    tensors |= {f"gradient of {k}": t.grad for k, t in tensors.items() if t.is_leaf and t.grad is not None}
    tables = [
        (at, id(x), type(x), sorted(vars(x)), x.training, [*x._forward_hooks])
        + tuple([(k, id(v)) for k, v in d.items()] for d in (x._parameters, x._buffers, x._modules))
        for at, x in m.named_modules()
    ]  # fmt: skip
    containers = [*map(id, m.items)], [*m.table], m.table[1][:], [*m.queue], [*map(id, m.held)]
    generators = torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())
    return (
        {k: of_tensor_now(t, reallocates) for k, t in tensors.items()},
        tables, containers, generators,
        (m.count, m.object.x, m.array.tobytes(), m.slots.x, hasattr(m.slots, "later"), Model.calls),
    )  # fmt: skip


def as_it_was(model: Model, reallocates: bool, run: Callable[[Tensor], Any]) -> None:
    x = torch.rand(8, 8)
    kept, sample, before = [*model.modules()], x.clone(), look(model, reallocates)
    with contextlib.suppress(ValueError, RuntimeError, rekindle.RekindleError, KeyboardInterrupt):
        run(x)
    after = look(model, reallocates)
    for b, a in zip(before, after, strict=True):
        assert a == b
    assert torch.equal(x, sample)
    assert kept


@given(models())
@examples(400)
def test_a_forward_that_changes_its_model(drawn: tuple[Model, bool]) -> None:
    model, reallocates = drawn

    def run(x: Tensor) -> None:
        with as_before(model, [x]), as_before(model, [x]):
            model(x).sum().backward()

    as_it_was(model, reallocates, run)


@sweep
def test_each_change_by_itself() -> None:
    alone = [(k, name) for k in OF_TENSORS for name in TENSORS]
    for change in [*alone, *OTHERS]:
        torch.manual_seed(0)
        model = Model([made(change, None)], [])
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None

        def run(x: Tensor, model: Model = model) -> None:
            with as_before(model, [x]):
                model(x).sum().backward()

        as_it_was(model, change[0] in REALLOCATES, run)


def test_one_thing_that_cannot_be_put_back_stops_no_other() -> None:
    model = Model([OTHERS["count"], OF_TENSORS["data"]("square"), OTHERS["array"]], [])
    square, content_before = model.square, model.square.clone()
    watched = weakref.ref(model.first)  # torch gives no tensor back that has weak references
    model.register_forward_pre_hook(lambda m, args: m.first.mul_(args[0].mean() * m.weight.mean()) and None)
    with (
        pytest.raises(rekindle.RekindleError, match=r"not as it was: first \(RuntimeError: .*parts=") as error,
        as_before(model),
    ):
        model(torch.rand(8, 8))
    assert "square" not in str(error.value)
    assert watched() is model.first
    assert model.square is square
    assert torch.equal(square, content_before)
    assert (model.count, model.array.tolist()) == (0, [*range(8)])


def test_a_view_that_was_written_to_under_gradients_is_put_back() -> None:
    """`detach_` refuses views: the model stayed changed."""
    model = Model([], [])
    first, content_before = model.first, model.first.clone()
    with as_before(model):
        model.first.mul_(model.weight.mean())
        assert not model.first.is_leaf
    assert model.first is first
    assert first.is_leaf
    assert not first.requires_grad
    assert torch.equal(first, content_before)
    assert first.untyped_storage()._cdata == model.flat.untyped_storage()._cdata


@pytest.mark.parametrize("bytes_more", [0, 3])
def test_fingerprints(bytes_more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_state, "WORDS_AT_ONCE", 16)
    one = torch.randint(256, (8 * 50 + bytes_more,), dtype=torch.uint8)
    was = fingerprint(one)
    assert fingerprint(one.clone()) == was
    seen = {was}
    for i in range(len(one)):
        one[i] ^= 128  # changes add up: an even number of flipped signs is not the same content
        seen.add(fingerprint(one))
    seen.add(fingerprint(one.roll(8)))
    seen.add(fingerprint(one.roll(8 * 16)))
    assert len(seen) == len(one) + 3


VERBS: dict[str, Callable[[Model, Tensor], Any]] = {
    "trace": lambda m, x: rekindle.trace(m, x, progress=False),
    "checkpoint": lambda m, x: rekindle.restore(planned(m, x)),
    "unchecked": lambda m, x: rekindle.restore(planned(m, x, check=False)),
    "strict": lambda m, x: rekindle.restore(planned(m, x, strict=True)),
    "a budget": lambda m, x: rekindle.checkpoint(m, x, budget=2000, cost="flops", progress=False),
    "parts": lambda m, x: rekindle.restore(planned(m, x, parts=["a", "b"])),
    "verify": lambda m, x: rekindle.verify(m, x, of_trace(rekindle.trace(m, x, progress=False))),
    "estimate": lambda m, x: rekindle.estimate(m, x, progress=False),
    "largest batch": lambda m, x: rekindle.largest_batch(m, lambda n: torch.ones(n, 8), budget="1MiB", progress=False),
}  # fmt: skip


def of_trace(trace: rekindle.Trace) -> rekindle.Plan:
    return rekindle.plan(trace, minimize="memory", solver="storages", time_limit=1, cost="flops", progress=False)


def planned(model: nn.Module, x: Tensor, **options: Any) -> nn.Module:
    how = {"solver": "storages", "time_limit": 1, "cost": "flops", "progress": False}
    return rekindle.checkpoint(model, x, minimize="memory", **how, **options)


@pytest.mark.sweep
@given(models(), st.sampled_from([*VERBS]))
@examples(2000)
def test_every_verb(drawn: tuple[Model, bool], verb: str) -> None:
    as_it_was(*drawn, lambda x: VERBS[verb](drawn[0], x))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_once(verb: str) -> None:
    every = [("data", "frozen"), ("in place", "square"), ("resize_", "empty"), "item's data", "class", "flag in a list"]
    torch.manual_seed(0)
    model = Model([made(c, None) for c in every], [])
    as_it_was(model, True, lambda x: VERBS[verb](model, x))


CONSTANT = torch.rand(8)


@pytest.mark.parametrize("verb", every(5, VERBS))
def test_memory_can_be_resized_after_every_verb(verb: str) -> None:
    """A look by `numpy()` takes that away, as FSDP would find, which frees gathered parameters so."""
    model, x = Model([lambda m: m.square.add_(CONSTANT)], []), torch.rand(8, 8)
    with contextlib.suppress(rekindle.RekindleError):
        VERBS[verb](model, x)
    tensors = [x, CONSTANT, model.plain, *model.items, model.object.t, *model.parameters(), *model.buffers()]
    assert all(t.untyped_storage().resizable() for t in tensors)


def test_bytes_of_a_tensor_leave_its_memory_resizable() -> None:
    t = torch.arange(6.0).reshape(2, 3)
    assert content_bytes(t.t()) == t.t().contiguous().clone().numpy().tobytes()
    assert content_bytes(torch.tensor([1 + 2j]).conj()) == torch.tensor([1 - 2j]).numpy().tobytes()
    assert content_bytes(torch.empty(0)) == b""
    assert t.untyped_storage().resizable()


class Changing(nn.Module):
    """Changes its tensors by `change` in each call, or in the first call alone."""

    def __init__(self, change: Callable[[Any, Tensor], Any], first_call_alone: bool):
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.frozen = nn.Parameter(torch.rand(8, 8), requires_grad=False)
        self.register_buffer("square", torch.rand(8, 8))
        self.register_buffer("ranges", torch.empty(0))
        self.change, self.first_call_alone, self.begun = change, first_call_alone, False

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.a(x).tanh().sin()).tanh()
        if not (self.begun and self.first_call_alone):
            with torch.no_grad():
                self.change(self, h)
            self.begun = self.first_call_alone
        return (h @ self.frozen.clone() * self.scale + self.square.sum(0) + self.ranges.sum()).sin()


def step(model: nn.Module, x: Tensor) -> dict[str, Any]:
    for p in model.parameters():
        p.grad = None
    loss = model(x).square().sum()
    loss.backward()
    state = {k: t.clone() for k, t in model.state_dict().items()}
    found = {"loss": loss.detach()} | {f"gradient of {k}": p.grad for k, p in model.named_parameters()} | state
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * (0 if p.grad is None else p.grad)
    return found


def trains_as_eager(model: nn.Module, plan: Callable[[nn.Module, Tensor], Any]) -> None:
    plain = copy.deepcopy(model)
    plan(model, torch.rand(64, 8))
    for i in range(4):
        x = torch.rand(64 if i < 3 else 48, 8)
        ours, its = step(model, x), step(plain, x)
        assert ours.keys() == its.keys()
        assert [k for k in its if not same(ours[k], its[k])] == []


# fmt: off
MOVES: dict[str, Callable[[Any, Tensor], Any]] = {
    "data": lambda m, h: setattr(m.frozen, "data", m.frozen * 0.9),  # data
    "data of a buffer": lambda m, h: setattr(m.square, "data", m.square * h.mean()),  # data of a buffer
    "set_": lambda m, h: m.square.set_(m.square * 0.9),  # set_
    "t_": lambda m, h: m.square.t_(),  # t_
    "as_strided_": lambda m, h: m.square.as_strided_((8, 8), m.square.stride()[::-1]),  # as_strided_
    "a flag": lambda m, h: m.frozen.requires_grad_(not m.frozen.requires_grad),  # a flag
    "a hook": lambda m, h: m.scale.register_hook(lambda g: 2 * g),  # a hook
    "a gradient": lambda m, h: setattr(m.scale, "grad", h.mean(0)),  # a gradient
    "replaced": lambda m, h: setattr(m, "frozen", nn.Parameter(m.frozen * 0.9, requires_grad=False)),  # replaced
    "by torch": lambda m, h: nn.utils.vector_to_parameters(torch.ones(64), [m.frozen]),  # by torch
    "resized": lambda m, h: m.ranges.resize_(len(m.ranges) + 8).fill_(h.mean()),  # resized
}
# fmt: on


@pytest.mark.parametrize("kind", every(6, MOVES))
def test_a_forward_that_moves_its_tensors_is_refused_by_its_line(kind: str) -> None:
    torch.manual_seed(0)
    model = Changing(MOVES[kind], first_call_alone=False)
    with pytest.raises(rekindle.TraceError) as error:
        planned(model, torch.rand(64, 8), strict=True)
    with open(__file__) as lines:
        line = next(i for i, text in enumerate(lines, 1) if text.endswith(f"  # {kind}\n"))
    assert f"{__file__}:{line}," in str(error.value)
    assert kind == "resized" or "plan the submodules that do no such thing: parts=['a', 'b']" in str(error.value)


@pytest.mark.parametrize("kind", every(2, MOVES))
def test_a_first_call_that_moves_tensors_runs_plain_and_later_ones_by_the_plan(kind: str) -> None:
    torch.manual_seed(0)
    model = Changing(MOVES[kind], first_call_alone=True)
    trains_as_eager(model, lambda m, x: planned(m, x, strict=True))
    assert sum(b.uses for b in model.forward.bounds) == 3


def test_hooks_of_parameters_outlive_planning() -> None:
    torch.manual_seed(0)
    model, seen = Changing(lambda m, h: None, first_call_alone=True), []
    plain = copy.deepcopy(model)
    for m in (model, plain):  # a copy of a parameter has no hooks
        m.scale.register_hook(lambda g: 2 * g)
        m.scale.register_post_accumulate_grad_hook(seen.append)
    planned(model, torch.rand(64, 8))
    assert seen == []
    for size in (64, 48):
        x = torch.rand(size, 8)
        ours, its = step(model, x), step(plain, x)
        assert [k for k in its if not same(ours[k], its[k])] == []
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["frozen", "square"])
@pytest.mark.parametrize("write", every(2, [lambda t, h: t.data.copy_(t * 0.9 + h.mean()), lambda t, h: t.mul_(0.9)]))
def test_writes_in_place_train_as_eager(name: str, write: Callable[[Tensor, Tensor], Any]) -> None:
    torch.manual_seed(0)
    trains_as_eager(Changing(lambda m, h: write(getattr(m, name), h), first_call_alone=False), planned)


class Momentum(nn.Module):
    """MoCo's own update of its key encoder, `t.data = …`, before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.online(x)
        with torch.no_grad():
            for p, t in zip(self.online.parameters(), self.target.parameters(), strict=True):
                t.data = t.data * 0.9 + p.data * 0.1
        return q * self.target(x)


@sweep
def test_the_part_that_is_left_is_planned() -> None:
    torch.manual_seed(0)
    model = Momentum()
    trains_as_eager(model, planned)
    assert type(model.online.forward).__name__ == "PartForward"


@sweep
def test_observers_that_resize_their_buffers_at_the_first_call() -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    trains_as_eager(quantization.prepare_qat(model), planned)
