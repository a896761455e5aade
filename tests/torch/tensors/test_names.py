"""No string of a model becomes code, or breaks it; tracebacks show the op and its module."""

from __future__ import annotations

import copy
import gc
import linecache
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rekindle
from marks import every
from rekindle.model.graph import ACCUMULATE
from rekindle.torch.situation.module_paths import is_marked, printable

EVIL = [
    "x\nopen('owned', 'w')\n#", "x\n    open('owned', 'w')\n    #",
    "x\rraise SystemExit\r", "a\u2028raise SystemExit", "a\x85raise SystemExit", "a\x0braise SystemExit",
    "a\x0craise SystemExit\x0c", "a\x00b", "quote\"'\"\"\"'''", "back\\slash\\", "\\",
    "a|accumulate|b", "accumulate", "boundary",
    "a|aten:mm:default|f32[1]", "🙂", "\u202etxt", "n" * 10_000, "[0]", "*", " ", "{x}", "\ud800", "класс", "def", "0",
]  # fmt: skip


class Keyed(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({k: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for k in names})

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = x + part(x)
        return x.square().mean()


def left(model: nn.Module, x: Tensor) -> list[Any]:
    loss = model(x)
    loss.backward()
    return [loss, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("names", every(3, [*[[n, "other"] for n in EVIL], EVIL]))
def test_any_name_of_a_module_is_a_name(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    plain, x = Keyed(names), torch.rand(16, 8)
    planned = copy.deepcopy(plain)
    trace = rekindle.trace(planned, x)
    plan = rekindle.plan(trace, minimize="memory", solver="feng" if len(names) < 3 else "chen-sqrt")
    assert all(op.name.isprintable() for op in plan.graph.ops)
    assert all(op.name == "boundary" or op.name.count("|") == 2 for op in plan.graph.ops)
    plan.save("plan.json")
    rekindle.apply(planned, rekindle.load("plan.json"))
    theirs, ours = left(plain, x), left(planned, x)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert planned.forward.last is not None
    source = planned.forward.source
    assert source.splitlines() == source.split("\n")[:-1]
    assert max(map(len, source.splitlines())) < 2000
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    waits = [op for op in plan.graph.ops if op.kind == ACCUMULATE]
    assert len(waits) == len(list(plain.parameters()))


@pytest.mark.parametrize("name", every(6, [n for n in EVIL if n.isascii() or n.isprintable()]))
def test_any_name_of_a_parameter_a_buffer_or_a_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def build(self: Any) -> None:
        nn.Module.__init__(self)
        self.register_parameter(f"p{name}", nn.Parameter(torch.rand(8, 8)))
        self.register_buffer(f"b{name}", torch.rand(8))

    def forward(self: Any, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self._parameters[f"p{name}"])
        self._buffers[f"b{name}"].add_(h.detach().mean(0))
        return torch.relu(h @ self._parameters[f"p{name}"] + self._buffers[f"b{name}"].clone()).sum()

    called = f"C{name}".replace("\0", "").encode("utf-8", "replace").decode()  # others are no names for a class
    kind = type(called, (nn.Module,), {"__init__": build, "forward": forward})
    torch.manual_seed(0)
    plain, x = kind(), torch.rand(16, 8)
    planned = copy.deepcopy(plain)
    trace = rekindle.trace(planned, x)
    rekindle.apply(planned, rekindle.plan(trace, minimize="memory", solver="feng"))
    theirs, ours = left(plain, x), left(planned, x)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert planned.forward.last is not None
    assert list(tmp_path.iterdir()) == []


def test_two_names_never_become_one() -> None:
    names = [*EVIL, "a\\x7cb", "a|b", "a\\nb", "a\nb", "\\\\"]
    assert len(set(map(printable, names))) == len(names)
    assert printable("blocks.0.lin") == "blocks.0.lin"


@pytest.mark.parametrize("name", every(3, ["[0]", "a[b", "*", "x?", "a|b", "new\nline"]))
def test_must_save_takes_a_name_as_it_is(name: str) -> None:
    model, x = Keyed([name, "other"]), torch.rand(16, 8)
    once = {
        op.module
        for op in rekindle.trace(model, x, must_save=[f"parts.{name}"]).graph.ops
        if not op.recompute and not op.backward and op.target.startswith("aten.")
    }
    assert {f"parts.{printable(name)}.{i}" for i in range(3)} <= once
    assert name == "*" or "parts.other.0" not in once
    assert is_marked(f"parts.{name}.0", [f"parts.{name}"])


class Many(int):
    def __repr__(self) -> str:
        return "__import__('os').abort()"


def test_a_number_that_prints_as_code_is_a_number() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.nn.functional.leaky_relu(self.layer(x), Many(2))
            return torch.einsum("ab->b", h).sum(Many(0)) * Many(3)

    plain, x = Net(), torch.rand(4, 8)
    planned = copy.deepcopy(plain)
    rekindle.apply(planned, rekindle.plan(rekindle.trace(planned, x), minimize="memory", solver="feng"))
    assert all(torch.equal(a, b) for a, b in zip(left(plain, x), left(planned, x), strict=True))
    assert "abort" not in planned.forward.source


def planned_pair() -> tuple[nn.Module, Tensor]:
    model, x = Keyed(["first", "second"]), torch.rand(16, 8)
    rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="feng"))
    return model, x


def test_a_traceback_shows_the_op_and_its_module() -> None:
    model, x = planned_pair()

    class Full(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += func is torch.ops.aten.addmm.default
            if self.calls == 2:
                raise RuntimeError("no memory")
            return func(*args, **(kwargs or {}))

    with pytest.raises(RuntimeError, match="no memory") as e, Full():
        model(x)
    text = "".join(traceback.format_exception(e.value))
    assert "addmm(" in text
    assert "# parts.second.0" in text


def test_the_source_goes_with_the_program() -> None:
    before = set(linecache.cache)
    model, x = planned_pair()
    model(x).backward()
    (file,) = [k for k in linecache.cache if k not in before and "rekindle plan" in k]
    assert linecache.getline(file, 1) == "def forward(inputs, rng):\n"
    linecache.checkcache()
    assert linecache.getline(file, 1) == "def forward(inputs, rng):\n"
    rekindle.restore(model)
    del model
    gc.collect()
    assert file not in linecache.cache
