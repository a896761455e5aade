"""The suites: the published protocol is followed, plans hold what they predict, nothing crashes the suite."""

from __future__ import annotations

import gc
import json
from functools import partial
from typing import Any
from unittest.mock import patch

import comparators  # noqa: F401 (the suites run them where they are registered)
import more_models
import pytest
import torch
from more_models.building import build
from small_copies import small
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo_suites import data_branches, zoo_case

from libraries import needs_torchvision
from marks import few, sweep
from rekindle import bench
from rekindle.bench.cases import Case
from rekindle.bench.methods import COMPARATORS, DEFAULTS, REGISTERED, TOKEN_COMPARATORS, Asked, choose, parse
from rekindle.bench.pool import run_in_processes
from rekindle.bench.row import key
from rekindle.bench.suites import OF_CHECKOUT, Model
from rekindle.errors import RekindleError, UsageError
from rekindle.planning import registry
from rekindle.torch.measure.memory import storage_peak
from rekindle.torch.tensors.loss import default_loss
from rekindle.zoo import seeds

KEYS = {
    "suite", "model", "method", "cost", "target", "batch", "image", "ops", "nodes", "solver", "peak_mb", "predicted_mb",
    "plain_mb", "flops_overhead", "seconds_overhead", "wall_ratio", "overhead", "nodes_overhead", "bound_mb", "gap",
    "least_overhead", "plan_status", "parity", "rewrites", "slices", "sums", "trace_seconds", "solve_seconds",
    "published_regular_mb", "published_ogc_mb", "measured_regular_mb", "measured_ogc_nonreentrant_mb", "versions", "commit",
    "hardware", "date", "status", "note",
}  # fmt: skip


def rows(suite: str, *args: Any, **options: Any) -> list[dict[str, Any]]:
    return list(bench.run_suite(suite, *args, **options))


@pytest.fixture(scope="module")
def alexnet() -> dict[str, dict[str, Any]]:
    needs_torchvision()
    return {r["method"]: r for r in rows("seeds", ["alexnet"], ["plain", "none", "every", "auto@8%", "auto=ogc"])}


@sweep
def test_nothing_stays_frozen() -> None:
    """A captured graph is kept from the garbage collector while its rows are measured, also where nobody asks for the last."""
    gc.unfreeze()  # what the tests themselves have frozen
    found = bench.run_suite("smoke", ["cnn"], ["plain", "none"], jobs=1)
    assert next(found)["status"] == "ok"
    assert gc.get_freeze_count() > 0
    found.close()  # type: ignore[attr-defined]
    assert gc.get_freeze_count() == 0


def test_rows_are_complete_and_plain_data(alexnet: dict[str, dict[str, Any]]) -> None:
    assert {"plain", "none", "auto@8%"} <= set(alexnet)
    for r in alexnet.values():
        assert set(r) == KEYS
        assert (r["suite"], r["model"], r["batch"], r["image"]) == ("seeds", "alexnet", 1024, 224)
        assert (r["status"], r["note"], r["parity"]) == ("ok", "", None)
        assert (r["published_regular_mb"], r["published_ogc_mb"]) == (4955, 3287)
        assert {"rekindle", "torch", "python"} <= set(r["versions"])
        assert (r["cost"], r["target"]) == ("flops", "rtx2080ti")
        assert r["ops"] > 50
        assert json.loads(json.dumps(r)) == r


def test_the_plain_step_is_the_published_measurement(alexnet: dict[str, dict[str, Any]]) -> None:
    plain = alexnet["plain"]
    assert plain["peak_mb"] == pytest.approx(3749.5, rel=0.01)
    assert plain["peak_mb"] == plain["plain_mb"] == alexnet["none"]["plain_mb"]
    assert (plain["solver"], plain["predicted_mb"], plain["flops_overhead"]) == (None, None, 0.0)


def test_executed_is_predicted(alexnet: dict[str, dict[str, Any]]) -> None:
    for r in alexnet.values():
        if r["method"] != "plain":
            assert r["peak_mb"] == pytest.approx(r["predicted_mb"], rel=0.001)
            assert r["trace_seconds"] > 0
            assert r["solve_seconds"] > 0
    assert alexnet["none"]["peak_mb"] <= 1.001 * alexnet["plain"]["peak_mb"]
    assert alexnet["none"]["flops_overhead"] == 0.0
    auto = alexnet["auto@8%"]
    assert 0 <= auto["flops_overhead"] <= 0.08
    assert auto["peak_mb"] < auto["measured_ogc_nonreentrant_mb"]
    assert auto["overhead"] == pytest.approx(auto["flops_overhead"], abs=0.001)
    assert auto["bound_mb"] <= auto["predicted_mb"]
    assert auto["plan_status"] in ("optimal", "feasible")
    ogc = alexnet["auto=ogc"]
    assert ogc["peak_mb"] <= ogc["measured_ogc_nonreentrant_mb"]
    assert ogc["flops_overhead"] <= auto["flops_overhead"]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("models", few([["cnn"], ["gpt", "unet", "cnn"]], [["cnn"]]))
def test_smoke(models: list[str]) -> None:
    found = rows("smoke", models, ["plain", "none", "feng"])
    assert {r["model"] for r in found} == set(models)
    for r in found:
        assert set(r) == KEYS
        assert (r["status"], r["note"]) == ("ok", "")
        assert r["parity"] is (None if r["method"] == "plain" else True)
        if r["method"] != "plain":
            assert r["peak_mb"] == pytest.approx(r["predicted_mb"], rel=0.02)
        if r["method"] == "none":
            assert r["peak_mb"] <= 1.02 * r["plain_mb"]


def test_a_failure_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle import api

    def fails(*args: Any, **options: Any) -> None:
        raise RekindleError("no plan today")

    monkeypatch.setattr(api, "plan", fails)
    plain, none = rows("smoke", ["cnn"], ["plain", "none"])
    assert (plain["status"], none["status"]) == ("ok", "failed")
    assert "no plan today" in none["note"]
    assert none["peak_mb"] is None
    assert none["plain_mb"] == plain["peak_mb"]


def test_a_solver_that_declines_a_graph_says_why() -> None:
    exact, checkmate = rows("seeds", ["resnet34"], ["exact", "checkmate"])
    assert (exact["status"], checkmate["status"]) == ("failed", "failed")
    assert exact["note"] == "does not apply: the graph has more than 128 needed ops or values"
    assert checkmate["note"].startswith("does not apply: ")
    assert checkmate["note"].endswith("variables or more are too many")


def test_the_same_schedule_is_measured_once_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    measure = Case.measure
    monkeypatch.setattr(Case, "measure", lambda *args: steps.append(1) or measure(*args))
    plain, none, again = rows("seeds", ["alexnet"], ["plain", "none", "none@5%"])
    assert len(steps) == 2
    assert none["peak_mb"] == again["peak_mb"] <= plain["peak_mb"]
    assert (none["nodes_overhead"], again["status"]) == (0.0, "ok")


def test_a_model_that_cannot_be_made_fails_in_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> None:
        raise RekindleError("no such package")

    monkeypatch.setitem(bench.SUITES, "smoke", lambda: {"cnn": Model(make, {"batch": 4})})
    found = rows("smoke", methods=["plain", "none"])
    assert [(r["status"], r["batch"], r["plain_mb"]) for r in found] == [("failed", 4, None)] * 2
    assert all("no such package" in r["note"] for r in found)


def test_methods() -> None:
    assert choose("smoke", ["auto", "none", "auto"]) == ["auto", "none"]
    assert choose("smoke", ["comparators"]) == list(COMPARATORS)
    assert {"auto", "feng"} <= set(choose("smoke", ["solvers"]))
    for suite in bench.SUITES:
        known = {"others": [s.name for s in registry.all_solvers() if s.name != "auto"]}
        assert choose(suite, None) == [name for m in DEFAULTS[suite] for name in known.get(m, [m])]
    assert parse("auto") == Asked("auto")
    assert parse("auto@12.5%") == Asked("auto", max_overhead=0.125)
    assert parse("auto=0.25") == Asked("auto", share=0.25)
    assert parse("auto=ogc") == Asked("auto", like="ogc")
    assert parse("auto=compile-0.5") == Asked("auto", like="compile-0.5")
    assert parse("auto=hong-exact") == Asked("auto", like="hong-exact")
    assert parse("auto=plain") is None
    assert parse("auto~close") == Asked("auto", parity="close")
    assert parse("auto@8%~close") == Asked("auto", max_overhead=0.08, parity="close")
    assert parse("auto=0.5~close") == Asked("auto", share=0.5, parity="close")
    assert parse("auto=hong-exact~close") == Asked("auto", like="hong-exact", parity="close")
    for no in ("plain", "compile-0.5", "auto=auto", "auto=1.5", "auto=0.0", "auto@x", "auto~near", "~close"):
        assert parse(no) is None


@patch.dict(REGISTERED, clear=True)
def test_an_installation_has_no_comparators_and_says_where_they_are() -> None:
    for suite in bench.SUITES:
        chosen = choose(suite, None)
        assert {"plain", "auto"} <= {m.partition("@")[0] for m in chosen}
        assert not set(chosen) & set(COMPARATORS)
    for method in ("checkpoint-blocks", "comparators", "matched", "auto=compile-0.5"):
        with pytest.raises(UsageError, match=r"run `python benchmarks/bench\.py`"):
            bench.run_suite("smoke", None, [method])
    with pytest.raises(UsageError) as e:
        bench.run_suite("smoke", None, ["magic"])
    assert "checkpoint-blocks" not in str(e.value)


def test_an_installation_says_where_the_other_suites_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(bench.SUITES) == {"seeds", "smoke", *OF_CHECKOUT}
    for suite in OF_CHECKOUT:
        monkeypatch.delitem(bench.SUITES, suite)
        with pytest.raises(UsageError, match=r"run `python benchmarks/bench\.py`"):
            bench.run_suite(suite)


def test_every_comparator_is_registered_by_its_name() -> None:
    assert set(REGISTERED) == set(COMPARATORS)
    assert {name for name, c in REGISTERED.items() if c.note} == set(TOKEN_COMPARATORS)


@pytest.mark.parametrize(
    "asked",
    [
        ("sprouts",),
        ("seeds", ["resnet7"]),
        ("smoke", ["gpt"], ["magic"]),
        ("smoke", None, ["auto@x"]),
        ("smoke", None, ["auto=0.0"]),
    ],
)
def test_what_is_unknown_is_a_usage_error(asked: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"choose|it has"):
        bench.run_suite(*asked)


def test_the_suite_seeds_is_the_published_table() -> None:
    assert list(bench.SUITES["seeds"]()) == [r.model for r in seeds.ROWS]


@sweep
def test_memory_is_a_share_of_the_plain_peak() -> None:
    plain, half = rows("smoke", ["unet"], ["plain", "feng=0.7"])
    assert half["peak_mb"] <= 0.7 * 1.02 * plain["peak_mb"]


@pytest.mark.parametrize("suite", ["modern", "deep"])
def test_models_of_the_zoo(suite: str) -> None:
    known = bench.SUITES[suite]()
    for name in more_models.SUITES[suite]:
        family = {"lstm_deep": "lstm-64", "resnet1000": "resnet-1000"}.get(name, name)
        assert family in known
    assert {t.model for t in bench.tasks(suite)} == set(known)


@pytest.mark.parametrize(("suite", "name"), few([("deep", "lstm_deep"), ("modern", "gpt2_small")], []))
def test_a_small_copy_of_a_model_of_the_zoo(suite: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake tensors, with every comparator; the plain step is the captured one."""
    pytest.importorskip("transformers")
    copy = small(name) | ({"length": 32, "batch": 64, "hidden": 64} if suite == "deep" else {"batch": 64})
    monkeypatch.setitem(bench.SUITES, suite, lambda: {name: Model(partial(zoo_case, name, copy))})
    found = {r["method"]: r for r in rows(suite, [name], ["plain", "comparators", "none", "chen-sqrt"])}
    plain, none, sqrt = found["plain"], found["none"], found["chen-sqrt"]
    assert none["peak_mb"] == pytest.approx(plain["peak_mb"], rel=0.05)
    assert none["seconds_overhead"] == pytest.approx(0, abs=0.2)
    assert sqrt["peak_mb"] < plain["peak_mb"]
    assert sqrt["overhead"] > 0
    assert plain["cost"] == {"deep": "seconds", "modern": "unit"}[suite]
    assert found["compile-0.5"]["status"] == "ok"
    blocks = found["checkpoint-blocks"]
    if suite == "deep":
        assert (blocks["status"], blocks["peak_mb"]) == ("failed", None)
        assert "no repeated blocks" in blocks["note"]
    else:
        refused = {m for m, r in found.items() if r["status"] != "ok"}
        assert refused <= set(TOKEN_COMPARATORS)  # these cannot run where logits are returned, and say so
        assert all(found[m]["note"].startswith("does not apply") for m in refused)
        assert blocks["peak_mb"] < plain["peak_mb"]
        assert 0.1 < blocks["flops_overhead"] < 0.35
        assert blocks["overhead"] is None


@sweep
def test_several_processes_give_the_same_rows() -> None:
    one, two = (
        {(r["model"], r["method"]): r for r in rows("smoke", ["cnn", "unet"], ["plain"], jobs=jobs)} for jobs in (1, 2)
    )
    assert one.keys() == two.keys()
    assert all(two[k]["peak_mb"] == one[k]["peak_mb"] and two[k]["status"] == "ok" for k in one)


def test_what_is_done_is_not_done_again() -> None:
    (first,) = rows("smoke", ["cnn"], ["plain"])
    done = {key(first)}
    assert [t.methods for t in bench.tasks("smoke", ["cnn"], ["plain", "none"], done)] == [("none",)]
    assert not bench.tasks("smoke", ["cnn"], ["plain"], done)
    assert bench.tasks("smoke", ["cnn"], ["plain"], done, target="h200")
    assert bench.tasks("smoke", ["cnn"], ["plain"], done, cost="unit")


@sweep
def test_a_process_that_ends_early_is_a_row() -> None:
    work = [bench.Task("smoke", "nothing of that name", ("plain", "none"), "rtx2080ti", "flops")]
    found = list(run_in_processes(work, 1, lambda _: None))
    assert [(r["method"], r["status"]) for r in found] == [("plain", "failed"), ("none", "failed")]
    assert all("ended early (exit code 1)" in r["note"] for r in found)


@sweep
def test_a_plan_within_the_memory_of_a_comparator_and_one_that_cannot_be() -> None:
    found = {r["method"]: r for r in rows("smoke", ["cnn"], ["checkpoint-sequential", "auto=checkpoint-sequential"])}
    theirs, ours = found["checkpoint-sequential"], found["auto=checkpoint-sequential"]
    assert ours["status"] == theirs["status"] == "ok"
    assert ours["peak_mb"] <= theirs["peak_mb"]
    alone = rows("smoke", ["cnn"], ["auto=checkpoint-sequential"])[0]  # the comparator is measured for it
    assert alone["peak_mb"] == ours["peak_mb"]
    solvers = {r["method"]: r for r in rows("smoke", ["cnn"], ["auto=chen-sqrt", "chen-sqrt"])}
    assert solvers["auto=chen-sqrt"]["peak_mb"] <= solvers["chen-sqrt"]["peak_mb"]
    assert solvers["auto=chen-sqrt"]["flops_overhead"] <= solvers["chen-sqrt"]["flops_overhead"]
    never = rows("smoke", ["cnn"], ["auto=0.01"])[0]
    assert never["status"] == "failed"
    assert never["bound_mb"] > 0.01 * never["plain_mb"]


@pytest.mark.parametrize("name", few(["llama_1b", "gpt2_small", "bert_large"], ["llama_1b"]))
def test_a_fake_step_holds_what_a_step_with_data_holds(name: str) -> None:
    """Transformers writes its mask out and repeats keys and values where a tensor is fake."""
    pytest.importorskip("transformers")
    options = small(name) | {"dropout": 0.0}
    model, sample = more_models.load(name, **options)

    def step() -> None:
        default_loss(model(**sample)).backward()

    step()
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *sample.values()]
    with_data = storage_peak(step, held).peak_bytes
    assert zoo_case(name, options).measure().peak == with_data


def test_a_fake_step_with_a_mask_of_which_nothing_is_known() -> None:
    """It is taken as the library takes it on tensors without data."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    with FakeTensorMode():
        model = build(lambda: transformers.BertForMaskedLM(config))
        ids = torch.randint(9, (2, 16))
        with data_branches():
            assert model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.shape[:2] == (2, 16)
            assert model(input_ids=ids, attention_mask=ids).logits.shape[:2] == (2, 16)
