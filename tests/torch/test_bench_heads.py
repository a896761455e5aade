"""PyTorch's own ways to run a head and its loss in chunks, and rows of plans that leave logits out or need only be close."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import more_models
import pytest
import torch
from comparators import auto_chunker, chunked_loss
from comparators.beside_plain import captured
from comparators.chunked_loss import chunked_loss as in_chunks
from comparators.private import auto_chunker as of_inductor
from comparators.private import chunked_cross_entropy
from small_copies import small
from torch import nn
from zoo_suites import zoo_case

from marks import few, sweep
from rekindle import api, bench
from rekindle.bench import row
from rekindle.bench.cases import Case, difference
from rekindle.bench.methods import REGISTERED, NotApplicable
from rekindle.bench.suites import Model, real_case
from rekindle.model.rewriting import Plain, Rewrite, Rewriting
from rekindle.torch.costs.operator_calls import FlopCount
from rekindle.torch.measure.memory import allocator_peak, storage_peak
from rekindle.torch.tensors.loss import default_loss

LOGITS = ("logits",)
WIDE = {"vocab": 2003, "length": 64}
needs_chunks = pytest.mark.skipif(chunked_cross_entropy() is None, reason="it came with torch 2.13")
needs_chunker = pytest.mark.skipif(of_inductor() is None, reason="this torch has no such pass")


pytestmark = pytest.mark.usefixtures("one_thread")


def made(name: str, **options: Any) -> tuple[nn.Module, Any]:
    if name in ("gpt2_small", "llama_1b", "bert_large"):
        pytest.importorskip("transformers")
    if name == "gpt":
        return more_models.load("gpt", batch=2, n_layer=1, d=32, heads=4, **WIDE, **options)
    return more_models.load(name, **(small(name) | WIDE | options))


def case_of(name: str, unused: tuple[str, ...] = (), **options: Any) -> Case:
    return real_case(lambda: made(name, **options), unused)


def figures(case: Case) -> tuple[int, int]:
    """FLOPs and allocator peak of a step."""
    with FlopCount() as count:
        case.step()
    return count.total, allocator_peak(case.step).peak_bytes


def untouched(model: nn.Module) -> bool:
    return not any("forward" in m.__dict__ for m in model.modules())


@needs_chunks
@pytest.mark.parametrize("name", few(["gpt2_small", "llama_1b", "gpt", "mamba", "moe"], ["gpt2_small", "gpt"]))
def test_chunked_cross_entropy_is_the_plain_step_up_to_rounding(name: str) -> None:
    case = case_of(name)
    flops, peak = figures(case)
    with in_chunks(case.model):
        assert set(case.model(**case.sample)) == {"loss"}
        fewer = figures(case)
    assert fewer[0] == flops
    assert fewer[1] < 0.7 * peak
    found = difference(case, partial(in_chunks, case.model))
    assert found.loss < 1e-5
    assert found.gradients < 1e-5
    assert untouched(case.model)


@needs_chunks
def test_labels_that_count_for_nothing_count_for_nothing() -> None:
    model, sample = made("gpt2_small", dropout=0.0)
    sample["labels"] = sample["labels"].clone()
    sample["labels"][:, 10:50] = -100
    plain = default_loss(model(**sample))
    with in_chunks(model):
        assert torch.allclose(default_loss(model(**sample)), plain, rtol=1e-5)
    sample["labels"][:, 10:50] = 0
    assert not torch.allclose(default_loss(model(**sample)), plain, rtol=1e-5)


@needs_chunks
def test_the_operators_body_in_the_open_has_the_operators_bits() -> None:
    case = case_of("gpt2_small")
    torch.manual_seed(0)
    with in_chunks(case.model):
        seen = []
        for watch in (nullcontext(), FlopCount()):
            case.model.zero_grad()
            torch.manual_seed(1)
            with watch:
                case.step()
            seen.append([p.grad.view(torch.int32).clone() for p in case.model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@needs_chunks
def test_fake_steps_hold_what_steps_with_data_hold() -> None:
    options = small("gpt2_small") | WIDE | {"dropout": 0.0}
    fake, (model, sample) = zoo_case("gpt2_small", options), made("gpt2_small", dropout=0.0)
    case = real_case(lambda: (model, sample))
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *sample.values()]
    with in_chunks(case.model), in_chunks(fake.model):
        assert fake.measure().peak == storage_peak(case.step, [t for t in held if t is not None]).peak_bytes


@needs_chunks
def test_models_without_such_a_loss_are_told_apart() -> None:
    with pytest.raises(NotApplicable, match="no head"), in_chunks(made("bert_large")[0]):
        pass
    model, _ = made("llama_1b")
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(NotApplicable, match="no head"), in_chunks(model):
        pass
    assert untouched(model)


@needs_chunker
@pytest.mark.parametrize("name", few(["gpt2_small", "llama_1b", "gpt", "mamba", "bert_large"], ["gpt2_small"]))
def test_inductors_chunks_are_the_plain_step_up_to_rounding(name: str) -> None:
    case = case_of(name, LOGITS, dropout=0.0)
    within = partial(REGISTERED["auto-chunker"].within, case, *captured(case))
    flops, peak = figures(case)
    with within():
        chunked = figures(case)
    assert chunked[0] == flops
    assert chunked[1] < 0.6 * peak
    found = difference(case, within)
    assert found.loss < 1e-5
    assert 0 < found.gradients < 1e-5
    assert untouched(case.model)


@needs_chunker
def test_inductor_refuses_steps_that_return_their_logits() -> None:
    case = case_of("gpt2_small", dropout=0.0)
    with pytest.raises(NotApplicable, match="auto_chunker says: .*aten.view.default"):
        REGISTERED["auto-chunker"].within(case, *captured(case)).__enter__()


def test_an_older_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "chunked_cross_entropy", lambda: None)
    monkeypatch.setattr(auto_chunker, "auto_chunker", lambda: None)
    found = list(bench.run_suite("smoke", ["gpt"], ["linear-cross-entropy", "auto-chunker"], jobs=1))
    assert [r["status"] for r in found] == ["failed"] * 2
    assert all(r["note"].startswith("does not apply: PyTorch ") for r in found)


def test_a_step_that_differs_is_measured_as_such() -> None:
    case = case_of("gpt", dropout=0.0)
    last = list(case.model.parameters())[-1]

    @contextmanager
    def doubled() -> Iterator[None]:
        hook = last.register_hook(lambda g: 2 * g)
        yield
        hook.remove()

    held = [p.grad for p in case.model.parameters()]
    found = difference(case, doubled)
    assert found.loss == 0
    assert found.gradients > 1e-4
    assert difference(case, nullcontext).gradients == 0
    assert all(a is p.grad for a, p in zip(held, case.model.parameters(), strict=True))


@sweep
@needs_chunks
@needs_chunker
def test_rows_of_a_model_without_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    copy = small("gpt2_small") | WIDE
    cases = {
        name: Model(partial(zoo_case, "gpt2_small", copy, unused)) for name, unused in (("m", ()), ("m-unused", LOGITS))
    }
    monkeypatch.setitem(bench.SUITES, "modern", lambda: cases)
    methods = ["plain", "linear-cross-entropy", "auto-chunker", "none"]
    found = {(r["model"], r["method"]): r for r in bench.run_suite("modern", None, methods, jobs=1)}
    assert found["m", "auto-chunker"]["note"].startswith("does not apply: Inductor's auto_chunker says")
    assert found["m-unused", "plain"]["peak_mb"] == found["m", "plain"]["peak_mb"]
    assert found["m-unused", "none"]["peak_mb"] <= found["m", "none"]["peak_mb"]
    for method in methods[1:3]:
        r = found["m-unused", method]
        assert (r["status"], r["flops_overhead"], r["slices"], r["sums"]) == ("ok", 0, None, None)
        assert r["note"].startswith("a small copy beside its plain step: loss off by ")
        assert r["peak_mb"] < 0.9 * r["plain_mb"]
    assert (found["m", "none"]["slices"], found["m", "none"]["sums"], found["m", "none"]["note"]) == (0, [], "")


def test_the_suite_has_models_without_logits() -> None:
    known = bench.SUITES["modern"]()
    assert {"gpt2_small", "gpt2_small-unused", "llama_1b-unused"} <= set(known)


def plan_that_sums(make: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    """A planner whose plans say that they run two ops in slices and add up a gradient."""
    made = Rewriting(
        "", Plain(1, 1.0, 1.0, 1.0), (Rewrite("saves", (1,)), Rewrite("slices", (3, 4), 2)), ("head.weight",)
    )

    def plan(*args: Any, **options: Any) -> Any:
        asked.append(options.get("parity", "bitwise"))
        found = make(*args, **options)
        if options.get("parity") == "close":
            object.__setattr__(found, "rewriting", made)
        return found

    return plan


def test_rows_of_plans_that_need_only_be_close(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(api, "plan", plan_that_sums(api.plan, asked))
    monkeypatch.setattr("rekindle.torch.parts.verify.verify", lambda *a, **k: type("Check", (), {"ok": False}))
    exact, close = bench.run_suite("smoke", ["cnn"], ["none", "none~close"], jobs=1)
    assert asked[-2:] == ["bitwise", "close"]
    assert (exact["status"], exact["slices"], exact["sums"]) == ("failed", 0, [])
    assert (close["status"], close["parity"], close["slices"], close["sums"]) == ("ok", False, 2, ["head.weight"])
    assert close["note"].startswith("beside the plain step: loss off by 0.0e+00")
    assert close["solver"] == "none"


def test_a_plan_without_rewrites_runs_nothing_in_slices() -> None:
    plan: Any = type("Plan", (), {})()
    assert (row.rewriting(plan), row.ops_in_slices(plan), row.sums(plan)) == (None, 0, [])


def test_an_addmm_in_place_counts_as_the_other() -> None:
    a, b, c = torch.ones(2, 5), torch.ones(2, 3), torch.ones(3, 5)
    with FlopCount() as count:
        a.addmm_(b, c)
    assert count.total == 60
