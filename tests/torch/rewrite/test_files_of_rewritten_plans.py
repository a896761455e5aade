"""Files of plans of rewritten steps: they run bit for bit where they fit, and a damaged one is never half used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import rekindle
from marks import every, sweep
from plan_documents import junk, places
from rekindle.errors import FormatError, ParityError, PlanMismatch
from rekindle.model.judge import plain_activation_bytes
from rekindle.model.plan import Plan
from rekindle.model.rewriting import SLICES
from rekindle.planning.plan_files import from_document
from rekindle.torch.rewrite.candidates import Rewrites
from rekindle.torch.rewrite.finding import Allowed
from rekindle.torch.rewrite.probe import Bits
from rekindle.torch.rewrite.region import adds_up
from rewritten_steps import OPTIONS, convolutions, plan_of, tokens, traced
from strategies import examples

NETS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "convolutions": lambda: convolutions(4, 8, 16),
    "tokens": lambda: tokens(4, 12, 130, 16, tied=True, smoothing=0.1),
}
_PLANS: dict[tuple[str, str], Plan] = {}


def plan_for(net: str, parity: str = "bitwise") -> Plan:
    """A plan with smaller saves or picked losses, and with slices."""
    if (net, parity) not in _PLANS:
        plain, close = traced(*NETS[net]()), parity == "close"
        may = (lambda n, cut: True) if close else (lambda n, cut: not adds_up(cut))
        steps = Rewrites(plain.lowered, plain_activation_bytes(plain.graph)).in_slices(
            Allowed(may, None if close else Bits(), far=True)
        )
        assert {s.kind for s in steps} > {SLICES}
        plan = plan_of(plain, steps, replace(OPTIONS, parity=parity))
        assert plan is not None
        _PLANS[net, parity] = plan
    return _PLANS[net, parity]


def step(model: nn.Module, sample: Any) -> list[Tensor]:
    """What a step gives: the loss, gradients and buffers."""
    torch.manual_seed(5)
    model.zero_grad()
    loss = model(*sample)
    loss.backward()
    found = [loss, *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]
    return [t.detach().clone() for t in found if t is not None]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("parity", every(2, ["bitwise", "close"]))
@pytest.mark.parametrize("net", NETS)
def test_a_plan_comes_back_from_its_file(tmp_path: Path, net: str, parity: str) -> None:
    plan = plan_for(net, parity)
    plan.save(tmp_path / "plan.json")
    loaded = rekindle.load(tmp_path / "plan.json")
    assert loaded.rewriting == plan.rewriting
    assert loaded.figures() == plan.figures()
    assert loaded.trace is None
    model, sample = NETS[net]()
    rekindle.apply(model, loaded, on_new_shape="error")
    check = rekindle.verify(model, sample)
    assert check.ok, check.differences
    (bound,) = model.forward.bounds  # type: ignore[union-attr]
    assert bound.trace.graph.hash == plan.graph_hash


@pytest.mark.parametrize("net", NETS)
def test_a_fresh_model_trains_bit_for_bit_by_the_file(net: str) -> None:
    model, sample = NETS[net]()
    eager = copy.deepcopy(model)
    rekindle.apply(model, from_document(document(net), "a plan"), on_new_shape="error")
    for _ in range(2):
        assert same(step(model, sample), step(eager, sample))


def document(net: str, parity: str = "bitwise") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(plan_for(net, parity).to_json()))
    return made


def damaged(net: str, path: tuple[Any, ...], value: Any, parity: str = "bitwise") -> dict[str, Any]:
    """The document of the plan with another value at one place of its rewriting."""
    doc = document(net, parity)
    at = doc["rewriting"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value(at[path[-1]]) if callable(value) else value
    return doc


def last_slices(net: str) -> int:
    rewriting = plan_for(net).rewriting
    assert rewriting is not None
    return max(i for i, s in enumerate(rewriting.steps) if s.kind == SLICES)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("steps", -1, "kind"), "unheard of"),
        (("steps", -1, "kind"), "saves"),
        (("steps", -1, "slices"), 1),
        (("steps", -1, "slices"), "8"),
        (("steps", -1, "cuts"), lambda cuts: cuts[:-1]),
        (("steps", -1, "cuts", 0), [[0.5], [0]]),
        (("steps", -1, "cuts", 0), [["all"], [0]]),
        (("steps", -1, "kept"), [10**6]),
        (("steps", -1, "ops"), lambda ops: [ops[0], *ops[:-1]]),
        (("plain", "peak_bytes"), -1),
        (("plain", "flops"), lambda x: x * 1.5),
        (("plain", "flops"), float("nan")),
        (("sums",), ["a", 3]),
        (("captured_hash",), 7),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(net: str, path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(FormatError):
        from_document(damaged(net, path, value), "a plan")


@pytest.mark.parametrize("net", every(2, NETS))
@pytest.mark.parametrize(
    ("path", "value"),
    every(
        2,
        [
            (("captured_hash",), "0" * 64),
            (("steps",), lambda steps: steps[:-1]),
            (("steps", -1, "ops"), lambda ops: [*ops[:-1], 10**6]),
            (("steps", -1, "ops"), lambda ops: [-1, *ops[1:]]),
            (("steps", -1, "ops"), lambda ops: [ops[1], ops[0], *ops[2:]]),
            (("steps", -1, "slices"), 3),
            (("steps", -1, "slices"), 10**9),
            (("steps", -1, "cuts", 0), lambda cut: [[7 for _ in cut[0]], cut[1]]),
            (("steps", -1, "cuts", 0), lambda cut: [cut[0], [*cut[1], 0]]),
            (("steps", -1, "cuts", 0), [[], []]),
        ],
    ),
)
def test_a_file_that_rewrites_another_step_is_refused(net: str, path: tuple[Any, ...], value: Any) -> None:
    doc = damaged(net, path, value)
    if path == ("steps", -1, "ops"):
        doc["rewriting"]["steps"][-1]["kept"] = []
    loaded = from_document(doc, "a plan")
    model, sample = NETS[net]()
    eager = copy.deepcopy(model)
    rekindle.apply(model, loaded)
    with pytest.raises(PlanMismatch):
        step(model, sample)
    assert not list(model.forward.bounds)  # type: ignore[union-attr]
    assert same(step(rekindle.restore(model), sample), step(eager, sample))


@sweep
@examples(120)
@given(st.data(), st.sampled_from(sorted(NETS)), st.sampled_from(("bitwise", "close")))
def test_no_damage_is_half_used(data: st.DataObject, net: str, parity: str) -> None:
    path = data.draw(st.sampled_from(places(document(net, parity)["rewriting"])))
    doc = damaged(net, path, data.draw(junk), parity)
    try:
        loaded = from_document(doc, "a plan")
    except FormatError:
        return
    model, sample = NETS[net]()
    try:
        check = rekindle.verify(model, sample, loaded)
    except (PlanMismatch, ParityError):
        return
    assert check.ok, check.differences
    assert parity == "close" or not check.close
