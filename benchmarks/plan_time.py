"""How long people wait for a plan, and what they get for it: the figures that a timed test must not hold.

    python benchmarks/plan_time.py waits         # trace and plan: kernels loaded, in a new process, at a second start
    python benchmarks/plan_time.py installation  # the first plan after an installation, compiling included
    python benchmarks/plan_time.py hopeless      # the error of a budget below the floor
    python benchmarks/plan_time.py efforts       # what "normal" loses against "thorough": an hour on two cores
    python benchmarks/plan_time.py noise         # one model planned in five processes, each with timings of its own

Wall times, on a machine that does nothing else. Each measurement runs in a process of its own. Prints tables and appends the
rows to results/DATE-plan-time.jsonl. --models a,b takes only these.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import more_models
from common import path_of, provenance

import rekindle
from rekindle.ask import Goal, PlanOptions
from rekindle.model.judge import simulate
from rekindle.planning.planner import plan_graph
from rekindle.portfolio import recent

# name -> options of more_models.load
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "unet": {"batch": 1},
    "resnet50": {"batch": 8},
    "gpt2_small": {},
    "llama_7b": {"fake": True},
    "resnet18": {"batch": 8},
    "vgg16": {"batch": 4},
    "inception_v3": {"batch": 4},
    "densenet121": {"batch": 4},
    "vit_b16": {"batch": 4},
    "mobilenet_v3": {"batch": 8},
    "bert_large": {"fake": True},
}
WAITED_FOR = ("gpt", "unet", "resnet50", "gpt2_small", "llama_7b")
NOISY = ("unet", "resnet50", "gpt")
GOALS: dict[str, dict[str, Any]] = {
    "three quarters": {"budget": 0.75},
    "half": {"budget": 0.5},
    "a third": {"budget": 1 / 3},
    "within 10 %": {"max_overhead": 0.1},
    "least": {"minimize": "memory"},
}
HALF: dict[str, Any] = {"budget": 0.5}


# -- in a process of its own ------------------------------------------------------------------------------------------
def wait(name: str) -> dict[str, float]:
    """Seconds of the first trace and plan of this process, and of the next ones, whose kernels are loaded and costs known."""
    row: dict[str, float] = {}
    for turn in ("first", "again"):
        recent.forget()
        model, sample = more_models.load(name, **MODELS[name])
        start = time.perf_counter()
        trace = rekindle.trace(model, sample)
        traced = time.perf_counter()
        _planned(trace, HALF, cache=turn == "first")
        row |= {f"{turn}_trace": traced - start, f"{turn}_plan": time.perf_counter() - traced}
    return row


def hopeless(name: str) -> dict[str, float]:
    """Seconds from the trace to the error of a budget of which half is held already."""
    model, sample = more_models.load(name, **MODELS[name])
    trace = rekindle.trace(model, sample)
    row = {}
    for turn in ("first", "again"):
        start = time.perf_counter()
        error = _planned(trace, {"budget": trace.graph.resident_bytes + 1}, cache=False)
        assert isinstance(error, str), "a budget of one byte of activations was met"
        row[turn] = time.perf_counter() - start
    return row


def plans(name: str) -> dict[str, Any]:
    """Runs, peak and overhead for half the memory and for least memory, by timings of this process."""
    model, sample = more_models.load(name, **MODELS[name])
    trace = rekindle.trace(model, sample)
    row: dict[str, Any] = {"seconds": trace.graph.weights("seconds").tolist()}
    for goal in ("half", "least"):
        plan = _planned(trace, GOALS[goal], cache=False)
        row[goal] = plan if isinstance(plan, str) else {"peak": plan.activation_peak_bytes, "runs": plan.schedule.runs}
    return row


def efforts(name: str) -> dict[str, Any]:
    """Peak and overhead for each goal and effort."""
    model, sample = more_models.load(name, **MODELS[name])
    trace = rekindle.trace(model, sample)
    row: dict[str, Any] = {}
    for effort in ("normal", "thorough"):
        for goal, given in GOALS.items():
            start = time.perf_counter()
            options = PlanOptions(Goal.parse(**given), effort=effort, cache=False)
            try:
                plan = plan_graph(trace.graph, options)
                found: Any = [plan.activation_peak_bytes, plan.overhead]
            except rekindle.InfeasibleBudget:
                found = None
            row[f"{effort}, {goal}"] = {"found": found, "took": time.perf_counter() - start}
    return row


def _planned(trace: Any, goal: dict[str, Any], cache: bool) -> Any:
    """The plan, or the error of a budget that is not met as text."""
    try:
        return rekindle.plan(trace, **goal, cache=cache, progress=False)
    except rekindle.InfeasibleBudget as e:
        return str(e)


IN_A_PROCESS: dict[str, Callable[[str], dict[str, Any]]] = {
    "wait": wait, "hopeless": hopeless, "plans": plans, "efforts": efforts,
}  # fmt: skip


def _ask(what: str, name: str, **environment: str) -> dict[str, Any]:
    """The row that a new process gives."""
    done = subprocess.run(
        [sys.executable, __file__, "--in-process", what, name],
        env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{what} of {name} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- tables -----------------------------------------------------------------------------------------------------------
def waits_table(names: list[str]) -> list[dict[str, Any]]:
    rows = []
    print(f"{'':<14}{'kernels loaded':>16}{'new process':>14}{'second start':>14}   seconds of trace + plan")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            _ask("plans", name, REKINDLE_CACHE=folder)  # costs are known from here on
            first = _ask("wait", name, REKINDLE_CACHE=folder)
            second = _ask("wait", name, REKINDLE_CACHE=folder)
        row = {"model": name, "first": first, "second": second}
        figures = [f"{first['again_trace']:.1f} + {first['again_plan']:.1f}"]
        figures += [f"{r['first_trace']:.1f} + {r['first_plan']:.1f}" for r in (first, second)]
        print(f"{name:<14}{figures[0]:>16}{figures[1]:>14}{figures[2]:>14}", flush=True)
        rows.append(row)
    return rows


def installation_table(names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as costs, tempfile.TemporaryDirectory() as kernels:
            row = _ask("wait", name, REKINDLE_CACHE=costs, NUMBA_CACHE_DIR=kernels)
        print(f"{name:<14}trace {row['first_trace']:.1f} s, plan {row['first_plan']:.1f} s", flush=True)
        rows.append({"model": name, **row})
    return rows


def hopeless_table(names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        row = _ask("hopeless", name)
        print(f"{name:<14}{row['first']:.2f} s in a new process, {row['again']:.2f} s again", flush=True)
        rows.append({"model": name, **row})
    return rows


def efforts_table(names: list[str]) -> list[dict[str, Any]]:
    rows, lost, larger = [], [], []
    print(f"{'':<14}{'goal':<16}{'normal':>20}{'thorough':>20}   extra time, of the step; least: MiB")
    for name in names:
        row = _ask("efforts", name)
        rows.append({"model": name, **row})
        for goal in GOALS:
            normal, thorough = (row[f"{effort}, {goal}"] for effort in ("normal", "thorough"))
            if normal["found"] is None or thorough["found"] is None:
                print(f"{name:<14}{goal:<16}{normal['found']!s:>20}{thorough['found']!s:>20}", flush=True)
                continue
            by_size = goal in ("least", "within 10 %")
            one, two = (e["found"][0] / 2**20 if by_size else e["found"][1] for e in (normal, thorough))
            (larger if by_size else lost).append(one / two - 1 if by_size else one - two)
            figures = [f"{x:,.2f}" if by_size else f"{x:.2%}" for x in (one, two)]
            took = [f"{figure} ({e['took']:.1f} s)" for figure, e in zip(figures, (normal, thorough), strict=True)]
            print(f"{name:<14}{goal:<16}{took[0]:>20}{took[1]:>20}", flush=True)
    if lost and larger:
        print(f"normal loses {statistics.mean(lost):.2%} of the step on average, {max(lost):.2%} at most; "
              f"its plans are {max(larger):.1%} larger at most")  # fmt: skip
    return rows


def noise_table(names: list[str], processes: int = 5) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        found = []
        for _ in range(processes):
            with tempfile.TemporaryDirectory() as folder:
                found.append(_ask("plans", name, REKINDLE_CACHE=folder))
        model, sample = more_models.load(name, **MODELS[name])
        seconds = [statistics.median(s) for s in zip(*(f["seconds"] for f in found), strict=True)]  # one set of costs
        graph = rekindle.trace(model, sample, target="cpu").graph.with_costs(seconds)
        row: dict[str, Any] = {"model": name}
        for goal in ("half", "least"):
            made = [f[goal] for f in found if not isinstance(f[goal], str)]
            extra = [simulate(graph, rekindle.Schedule.from_runs(graph, m["runs"])).overhead for m in made]
            row[goal] = {"peaks": [m["peak"] for m in made], "overheads": extra, "refused": processes - len(made)}
            if made:
                peaks = [p / 2**20 for p in row[goal]["peaks"]]
                print(f"{name:<14}{goal:<8}peaks {min(peaks):.2f} to {max(peaks):.2f} MiB, extra time {min(extra):.2%} to "
                      f"{max(extra):.2%}, {processes - len(made)} of {processes} refused", flush=True)  # fmt: skip
        rows.append(row)
    return rows


TABLES: dict[str, tuple[Callable[[list[str]], list[dict[str, Any]]], tuple[str, ...]]] = {
    "waits": (waits_table, WAITED_FOR),
    "installation": (installation_table, ("resnet18",)),
    "hopeless": (hopeless_table, ("gpt", "resnet50")),
    "efforts": (efforts_table, tuple(MODELS)),
    "noise": (noise_table, NOISY),
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", choices=[*TABLES, *IN_A_PROCESS])
    p.add_argument("name", nargs="?", help=argparse.SUPPRESS)
    p.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--models", type=lambda s: s.split(","), help="only these")
    given = p.parse_args()
    if given.in_process:
        print(json.dumps(IN_A_PROCESS[given.table](given.name)))
        return
    facts = {"benchmark": f"plan_time {given.table}", **provenance()}
    table, usual = TABLES[given.table]
    rows = table(given.models or list(usual))
    with Path(path_of("plan-time.jsonl")).open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
