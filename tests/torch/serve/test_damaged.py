"""Damaged and tampered files: each gives a RekindleError, or loads to something whose figures are the judge's. Nothing else is
raised, nothing hangs, nothing in a file runs.

REKINDLE_FUZZ=10000 raises the number of files of each kind.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plain_judge import simulate_plain
from rekindle.ask import Budget, Fraction, LeastMemory, MaxOverhead, PlanOptions
from rekindle.cli import main
from rekindle.errors import FormatError, RekindleError
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, COSTS, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import Plan, schedule_document
from rekindle.model.schedule import Schedule
from rekindle.parts.files import load
from rekindle.planning.planner import plan_graph

WHOLE_CERTIFICATES = True  # some changes make a claim of optimality false
FILES = int(os.environ.get("REKINDLE_FUZZ", "60"))
PATIENCE_S = 20.0  # for one file; a busy machine takes its time
CANARY = Path("rekindle_was_here")  # what the strings below would make if they ran

CODE = f"open({str(CANARY)!r}, 'w')"
STRINGS = [
    "", "\x1b[2J\x1b]0;owned\x07", "a\nb\rc", "\u202e", "\ud800", "\x00", "x" * 100_000, "9" * 5000, "NaN", "../../etc/passwd",
    f"__import__('os').system('touch {CANARY}')", f"'); {CODE}; ('", f"\n{CODE}\n", f"{{{CODE}}}", "%s%n", "[bold]x[/bold]",
    "boundary", "optimal", "feasible", "rekindle.plan/1", "rekindle.graph/1", "seconds", "flops", "unit",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e-320, 5e-324, 1e-9, 1e9, 1e18, 1e300, 1.7e308, math.inf, -math.inf, math.nan, 2**31, 2**53,
    2**61, 2**62, 2**63, 2**64, -(2**63), 10**30, 10**400, 10**4000,
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [0], [{}], {"a": 1}, [1, 2, 3], [-1], [10**30], [None]]


def step() -> Graph:
    """A chain of six with a skip, in-place writes and hand-overs that run once, 4 to 40 bytes each."""
    sizes = [4, 40, 20, 40, 8, 20, 40, 40, 20, 8, 40, 20, 40, 4]
    ops = [
        Op("f0", (0,), (1,), 1.0, 4), Op("f1", (1,), (2,), 0.5, 2, workspace=16), Op("f2", (2,), (3,), 1.0, 4),
        Op("relu", (3,), (4,), 0.25, 1, inplace=(3,)), Op("f3", (4, 1), (5,), 1.0, 4), Op("f4", (5,), (6,), 1.0, 4),
        Op(BOUNDARY, (6,), (7,), recompute=False),
        Op("b4", (7, 5), (8,), 2.0, 8, backward=True, inplace=(7,)), Op("b3", (8, 4, 1), (9,), 2.0, 8, backward=True),
        Op("b2", (9, 2), (10,), 2.0, 8, backward=True), Op("b1", (10, 1), (11,), 2.0, 8, backward=True),
        Op("b0", (11, 1), (12,), 2.0, 8, backward=True), Op("give", (12,), (13,), recompute=False, backward=True),
    ]  # fmt: skip
    return Graph(tuple(map(Value, sizes)), tuple(ops), (13, 6), 100, "step")


def plans() -> list[dict[str, Any]]:
    made = [
        plan_graph(step(), PlanOptions(LeastMemory(), solver="exact")),
        plan_graph(step(), PlanOptions(MaxOverhead(0.3), solver="storages", cost="flops")),
        plan_graph(step(), PlanOptions(Fraction(1.0), solver="none", cost="unit")),
        plan_graph(step(), PlanOptions(Budget(4096), solver="chen-sqrt")),
    ]
    found = [json.loads(json.dumps(p.to_json())) for p in made]
    found[0]["options"] = {"time_limit": 3.0, "seed": 1, "optimizer": "adamw", "state_bytes": 4096}
    found[1]["options"] = {
        "loss": "all",
        "must_save": ["a", "b.*"],
        "target": "h200",
        "parity": "close",
        "unused": ["a.0"],
    }
    return found


def parts(doc: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every part of a document."""
    found = []
    waiting = [doc]
    while waiting:
        at = waiting.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        for key in keys:
            found.append((at, key))
            waiting.append(at[key])
    return found


def junk(r: random.Random) -> Any:
    return copy.deepcopy(r.choice(r.choice([STRINGS, NUMBERS, NUMBERS, OTHERS])))


def changed(doc: Any, r: random.Random) -> Any:
    """The document with a few of its parts taken out, exchanged, doubled, shifted or moved."""
    doc = copy.deepcopy(doc)
    for _ in range(r.choice([1, 1, 1, 2, 5])):
        places = parts(doc)
        if not places:
            break
        at, key = r.choice(places)
        x = at[key]
        what = r.randrange(7)
        if what == 0:
            del at[key]
        elif what == 1 and isinstance(x, int | float) and abs(x) < 1e300 and not isinstance(x, bool):
            at[key] = r.choice([x + 1, x - 1, -x, x * 1000, float(x), x / 3, str(x)])
        elif what == 2 and isinstance(at, list):
            at.insert(key, copy.deepcopy(x))
        elif what == 3 and isinstance(x, list):
            r.shuffle(x)
        elif what == 4:
            at[key] = copy.deepcopy((lambda p: p[0][p[1]])(r.choice(places)))
        elif what == 5 and isinstance(at, dict):
            at[r.choice(STRINGS)] = junk(r)
        else:
            at[key] = junk(r)
    return doc


def consistent(doc: Any) -> Any:
    """A changed plan made to agree with itself as far as whoever tampers with it can: hashes and figures."""
    try:
        graph = formats.graph_from_json(doc["graph"])
        doc["schedule"]["graph_hash"] = doc["graph_hash"] = graph.hash
        judged = simulate(graph, formats.schedule_from_json(doc["schedule"]), doc["cost"])
        doc |= {"peak_bytes": judged.peak_bytes, "activation_peak_bytes": judged.peak_bytes - graph.resident_bytes}
        doc |= {"seconds": judged.seconds, "overhead": judged.overhead, "flops_overhead": judged.flops_overhead}
        doc["baseline_peak_bytes"] = simulate(graph, Schedule.baseline(graph)).peak_bytes
        doc["gap"] = (judged.peak_bytes - doc["bound_bytes"]) / judged.peak_bytes
    except (RekindleError, KeyError, TypeError, ZeroDivisionError, AttributeError, OverflowError):
        pass
    return doc


def damaged(raw: bytes, r: random.Random) -> bytes:
    """The bytes with a few of them flipped, taken out, put in, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(r.choice([1, 1, 2, 8])):
        if not data:
            break
        i, j = sorted((r.randrange(len(data)), r.randrange(len(data))))
        what = r.randrange(6)
        if what == 0:
            data[i] ^= 1 << r.randrange(8)
        elif what == 1:
            del data[i:]
        elif what == 2:
            del data[i : min(j, i + 20)]
        elif what == 3:
            data[i:i] = data[i : min(j, i + 50)]
        elif what == 4:
            data[i:i] = r.choice(
                [b"[" * 5000, b"9" * 5000, b"\xff\xfe", b'"', b"\x00", b"1e999", b"NaN", b"{}", b",", b"-"]
            )
        else:
            data[i] = r.randrange(256)
    return bytes(data)


def broken(doc: Any, r: random.Random, tamper: Callable[[Any], Any] = lambda doc: doc) -> bytes:
    """A document as a file, damaged in one way or another."""
    way = r.randrange(4)
    if way == 0:
        return damaged(json.dumps(doc).encode(), r)
    doc = changed(doc, r)
    return written(tamper(doc) if way == 1 else doc)


def written(doc: Any) -> bytes:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(doc).encode()
    finally:
        sys.set_int_max_str_digits(limit)


def checked(plan: Plan, again: Path) -> None:
    """Every figure of the plan is the judge's, what is printed is plain, and it is the same after another saving."""
    judged = simulate(plan.graph, plan.schedule, plan.cost)
    peak, seconds = simulate_plain(plan.graph, plan.schedule)
    assert plan.peak_bytes == judged.peak_bytes == peak
    assert plan.activation_peak_bytes == peak - plan.graph.resident_bytes
    assert plan.baseline_peak_bytes == simulate(plan.graph, Schedule.baseline(plan.graph)).peak_bytes
    for figure, found in (
        (plan.seconds, judged.seconds), (plan.overhead, judged.overhead), (plan.flops_overhead, judged.flops_overhead),
        (judged.seconds, seconds),
    ):  # fmt: skip
        assert math.isfinite(found)
        assert math.isclose(figure, found, rel_tol=1e-8, abs_tol=1e-11)
    assert 0 <= plan.bound_bytes <= peak
    assert 0 <= plan.gap <= 1
    assert plan.arena_bytes >= 0
    assert plan.sum_bytes >= 0
    for said in (str(plan), plan.sentence):
        assert said.replace("\n", "").isprintable()
        assert plan.verified or "not verified" in said
    plan.save(again)
    assert load(again).figures() == plan.figures()


def plain(error: RekindleError) -> None:
    """What an error says of a file can be printed."""
    assert str(error).isprintable()
    assert len(str(error)) < 2000


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path


class Timed:
    """Inside, what takes too long fails, and the seed is told of what fails."""

    def __init__(self, seed: int):
        self.seed, self.start = seed, time.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None:
            error.add_note(f"seed {self.seed}")
        else:
            assert time.monotonic() - self.start < PATIENCE_S, f"seed {self.seed} took too long"


def test_damaged_plans(tmp_path: Path) -> None:
    documents = plans()
    path, loaded, unproven = tmp_path / "plan.json", 0, 0
    for doc in documents:  # what is whole loads
        path.write_bytes(written(doc))
        checked(load(path), tmp_path / "again.json")
    for seed in range(max(FILES, 1000)):  # false claims are rare
        r = random.Random(seed)
        path.write_bytes(broken(r.choice(documents), r, consistent))
        with Timed(seed):
            try:
                plan = load(path)
            except FormatError as e:
                plain(e)
                continue
            loaded += 1
            unproven += not plan.verified
            checked(plan, tmp_path / "again.json")
    assert loaded > FILES / 100, "some changes do no harm"
    assert unproven, "and some claims are false"
    assert not CANARY.exists()


def test_damaged_graphs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, loaded = tmp_path / "graph.json", 0
    doc = formats.graph_to_json(step())
    for seed in range(FILES):
        r = random.Random(seed)
        path.write_bytes(broken(doc, r))
        with Timed(seed):
            try:
                graph = formats.graph_from_json(formats.read_json(path), str(path))
            except FormatError as e:
                plain(e)
                continue
            loaded += 1
            assert formats.graph_from_json(formats.graph_to_json(graph)) == graph
            goal = r.choice([Budget(2**62), Fraction(1.0), MaxOverhead(0.5), LeastMemory()])
            try:
                plan = plan_graph(graph, PlanOptions(goal, solver="none", cost=r.choice(COSTS)))
            except RekindleError:
                continue
            checked(plan, tmp_path / "again.json")
    assert loaded > FILES / 100
    assert not CANARY.exists()


def test_damaged_graphs_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.json"
    doc = formats.graph_to_json(step())
    for seed in range(max(20, FILES // 10)):
        r = random.Random(seed)
        path.write_bytes(broken(doc, r))
        with Timed(seed):
            more = ["--json"] if seed % 2 else []
            code = main(["solve", str(path), "--minimize", "memory", "--solver", "storages", "--svg", "x.svg", *more])
            said, complaint = capfd.readouterr()
            assert code in (0, 1, 2, 3)
            assert "raised at" not in complaint, "an error that is no RekindleError"
            assert "Traceback" not in complaint
            assert not set("\x1b\x07\r\u202e") & set(said + complaint)
            if more:
                assert ("error" in json.loads(said)) == (code != 0)
    assert not CANARY.exists()


def test_damaged_schedules(tmp_path: Path) -> None:
    graph, path, loaded = step(), tmp_path / "schedule.json", 0
    doc = schedule_document(plan_graph(graph, PlanOptions(LeastMemory(), solver="exact")))
    for seed in range(FILES):
        r = random.Random(seed)
        path.write_bytes(broken(doc, r))
        with Timed(seed):
            try:
                schedule = formats.schedule_from_json(formats.read_json(path), str(path))
                judged = simulate(graph, schedule)
            except FormatError as e:
                plain(e)
                continue
            loaded += 1
            peak, seconds = simulate_plain(graph, schedule)
            assert (judged.peak_bytes, judged.seconds) == (peak, pytest.approx(seconds))
    assert loaded > FILES / 100
    assert not CANARY.exists()


def test_damaged_caches_of_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rekindle.torch.costs import cache as cost_cache
    from rekindle.torch.costs.cache import Measurement

    caplog.set_level(logging.WARNING)
    store = cost_cache.CostCache("here")
    for i in range(20):
        store.put(f"op {i}", Measurement((i + 1) / 7, 0.5, i, 1.0, i))
    store.save()
    assert store.path is not None
    doc = json.loads(store.path.read_text())
    for seed in range(FILES):
        monkeypatch.setattr(cost_cache, "_WARNED", set())
        r = random.Random(seed)
        store.path.write_bytes(broken(doc, r))
        with Timed(seed):
            again = cost_cache.CostCache("here")
            for m in again.known.values():
                assert type(m.seconds) is type(m.spread) is type(m.roofline) is float
                assert type(m.workspace) is type(m.moved) is int
                assert 0 < m.seconds <= 1e5
                assert 0 < m.roofline <= 1e5
                assert 0 <= m.workspace < 2**62
            fresh = Measurement(1.0, 0.0, 2, 1.0, 8)
            again.put("fresh", fresh)
            again.save()
            assert cost_cache.CostCache("here").get("fresh") == fresh
            assert len(caplog.records) <= 1, "one warning for one file"
            assert all(record.getMessage().isprintable() for record in caplog.records)
            assert all(str(store.path) in record.getMessage() for record in caplog.records)
        caplog.clear()
    assert not CANARY.exists()
