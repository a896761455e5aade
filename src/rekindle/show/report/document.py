"""The data of a report: the figures of a plan, or of the plans of a model's parts, as one JSON document.

The document is read by the page's own script alone, so its form may change with every version. Long lists stand in columns,
and texts in one table, so that the report of 7,000 ops stays below 3 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...compiling import SAVES
from ...explain import explain, holding
from ...explain.holding import RESIDENT, holders
from ...explain.loss import loss_ops
from ...explain.modules import folded_paths, paths_pattern
from ...explain.rows import forward_tree
from ...explain.words import REWRITTEN
from ...model import verdict
from ...model.graph import Graph
from ...model.op_names import does
from ...model.plan import Plan
from ...model.schedule import Schedule
from ...parts.explaining import explain_parts
from ...parts.plan import PartsPlan
from ...printed import name
from ...saying.shares import COST_WORDS, percent
from ...saying.sizes import format_bytes
from ..svg import TimeAxis, run_ends
from .curve import CurvePoint
from .held import PART_OF, MemoryByPart, recomputed

MOST_ROWS = 200  # of the table of what is recomputed; the rest is one row


class Strings:
    """The table of a report's texts: each is written once, and named by its position elsewhere.

    Position 0 is the empty text. Every text is made printable and cut to 200 characters.
    """

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self._at: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        """The position of a text."""
        if text not in self._at:
            self._at[text] = len(self.texts)
            self.texts.append(name(text))
        return self._at[text]


def of_plan(plan: Plan | PartsPlan, curves: Sequence[Sequence[CurvePoint]]) -> dict[str, Any]:
    """The document of a plan. curves : for each of `plan.distinct()`, the points of its memory/time curve, or none."""
    strings = Strings()
    every = [part.path for part in plan.parts] if plan.kind == "parts" else [""]
    parts = [
        _part(p, curve, strings, title=_paths(paths, every))
        for (p, paths), curve in zip(plan.distinct(), curves, strict=True)
    ]
    return {
        "title": name(plan.module_name if plan.kind == "parts" else plan.graph.name), "verdict": plan.sentence, "parts": parts,
        "strings": strings.texts, **({"whole": _whole(plan)} if plan.kind == "parts" else {}),
    }  # fmt: skip


def time_axis(plan: Plan) -> TimeAxis:
    """The time axis of a plan's pictures."""
    return TimeAxis.of(plan.graph, plan.cost, plan.trace_options.target)


def _paths(paths: Sequence[str], every: Sequence[str]) -> str:
    """The parts that run by one plan, in a few words. every : the paths of all parts."""
    pattern = paths_pattern(paths, every)
    return name(pattern if len(paths) == 1 or pattern.endswith(" more") else f"{len(paths)} × {pattern}")


def _part(plan: Plan, curve: Sequence[CurvePoint], strings: Strings, title: str) -> dict[str, Any]:
    graph = plan.graph
    time = time_axis(plan)
    patterns = folded_paths(forward_tree(graph, loss_ops(graph)))
    schedules = Schedule.baseline(graph), plan.schedule
    held = [MemoryByPart.of(graph, s) for s in schedules]
    waits = [run_ends(graph, s, h.lives.judged, time.weights)[1] for s, h in zip(schedules, held, strict=True)]
    return {
        "title": title, "facts": _facts(plan), "claims": _claims(plan),
        "resident": graph.resident_bytes, "budget": plan.limit, "bound": plan.bound_bytes, "peak": plan.peak_bytes,
        "plainPeak": plan.baseline_peak_bytes, "overhead": plan.overhead, "gap": plan.gap,
        "least": plan.least_overhead, "isBudget": plan.goal.is_budget, "verified": plan.verified,
        "unit": time.unit, "cost": plan.cost, "timeTitle": time.title, "costWords": COST_WORDS[plan.cost],
        "ops": _ops(graph, time, strings),
        "tracks": [_track(*x) for x in zip(("plain", "planned"), held, waits, strict=True)],
        "holders": [_holders(graph, h, patterns, strings) for h in held],
        "remarks": [x for x in explain(plan).remarks if not x.startswith(REWRITTEN)],
        "recomputed": _recomputed(plan, time, patterns, strings),
        "curve": [_point(p) for p in curve], "copies": plan.schedule.moves,
        "curveStep": "" if plan.rewriting is None else "captured" if any(p.captured for p in curve) else "rewritten",
        "rewriting": [] if plan.rewriting is None else [list(row) for row in plan.rewriting.rows()],
        "made": _made(plan),
    }  # fmt: skip


def _facts(plan: Plan) -> list[list[str]]:
    """Rows of (name, plain, planned)."""
    runs = plan.schedule.runs
    return [
        ["peak of the step", format_bytes(plan.baseline_peak_bytes), format_bytes(plan.peak_bytes)],
        ["of which held all step", *[format_bytes(plan.graph.resident_bytes)] * 2],
        [
            "of which activations",
            format_bytes(plan.baseline_activation_bytes),
            format_bytes(plan.activation_peak_bytes),
        ],
        ["operator runs", "" if plan.rewriting else f"{len(set(runs)):,}", f"{len(runs):,}"],
        [f"extra {COST_WORDS[plan.cost]}", "", percent(plan.overhead)],
        *([["extra FLOPs", "", percent(plan.flops_overhead)]] if plan.cost != "flops" else []),
        *([["copied to the host", "", format_bytes(plan.moved_bytes)]] if plan.moved_bytes else []),
        *([["of which at once, at most", "", format_bytes(plan.host_bytes)]] if plan.moved_bytes else []),
    ]


def _whole(plan: PartsPlan) -> dict[str, Any]:
    """The figures of the whole step, and a row for parts that run in the same way, as `explain` has it."""
    return {
        "peak": plan.peak_bytes, "plainPeak": plan.baseline_peak_bytes, "resident": plan.resident_bytes,
        "overhead": plan.overhead, "least": plan.least_overhead if plan.goal.is_budget else None,
        "costWords": COST_WORDS[plan.cost], "compiled": plan.trace_options.compile is not None, "away": sum(plan.host_blocks),
        "saves": [
            [f"saves {x}", SAVES[x]] for x in dict.fromkeys(p.compiled.saves for p in plan.parts if p.compiled is not None)
        ],
        "ways": [
            {
                "pattern": name(r.pattern), "kind": name(r.kind), "count": r.count, "kept": r.kept_bytes,
                "plain": r.plain_kept_bytes, "moved": r.moved_bytes, "recomputed": r.recomputed_bytes, "added": r.added_seconds,
            }
            for r in explain_parts(plan).rows
        ],
    }  # fmt: skip


def _claims(plan: Plan) -> list[list[str]]:
    """The certificate as rows of (name, words)."""
    rows = [["smallest peak", f"{verdict.peak_claim(plan)} (gap {plan.gap:.1%})".replace("%)", " %)")]]
    if plan.goal.is_budget:
        rows.append(["least extra cost in the budget", verdict.cost_claim(plan) or "nothing is proven"])
    rows.append([verdict.AT_BEST, verdict.bound_words(plan)])
    if plan.splitting_op:
        rows.append(["going lower", f"split {verdict.splitting_claim(plan)}"])
    if not plan.verified:
        rows.append(["proof", "the certificate is the file's own; it could not be proven again in short time"])
    return rows


def _made(plan: Plan) -> list[list[str]]:
    goal = ", ".join(f"{k} {x}" for k, x in plan.goal.to_json().items())
    rows = [
        ["goal", goal], ["solver", f"{plan.solver}, {plan.status}{plan.doubt}"],
        ["solved in", f"{plan.solve_seconds:.1f} s"], ["cost", COST_WORDS[plan.cost]],
        ["graph", f"{len(plan.graph.ops):,} ops, {plan.graph_hash[:16]}"],
    ]  # fmt: skip
    rows += [[k, v] for k, v in plan.created_with.items()]
    return [[name(k), name(v)] for k, v in rows]


def _ops(graph: Graph, time: TimeAxis, strings: Strings) -> dict[str, list[Any]]:
    ops = graph.ops
    return {
        "module": [strings.add(o.module) for o in ops],
        "does": [strings.add(does(o)) for o in ops],
        "shape": [strings.add(o.shape) for o in ops],
        "source": [strings.add(o.source) for o in ops],
        "bytes": [sum(graph.values[v].bytes for v in o.outputs) for o in ops],
        "workspace": [o.workspace for o in ops],
        "time": [_short(x) for x in time.weights],
    }  # fmt: skip


def _track(label: str, held: MemoryByPart, waits: np.ndarray) -> dict[str, Any]:
    """waits : seconds that each run waits for copies before it begins; in the document, those that do: (run, seconds)."""
    lives = held.lives
    return {
        "label": label, "peak": lives.peak, "boundary": lives.boundary, "runs": lives.ops.tolist(),
        "parts": [row.tolist() for row in held.parts],
        "away": lives.away.tolist() if lives.away.any() else [],
        "waits": [[i, _short(waits[i])] for i in np.flatnonzero(waits).tolist()],
    }  # fmt: skip


def _holders(graph: Graph, held: MemoryByPart, patterns: dict[str, str], strings: Strings) -> list[list[int]]:
    """Rows of (module pattern, what the op does, shape, part, workspace, values, bytes) of what is held at the peak."""
    return [
        [
            strings.add(h.module), strings.add(h.operator), strings.add(h.shape), PART_OF[h.role],
            int(h.role == holding.WORKSPACE), h.count, h.bytes,
        ]
        for h in holders(graph, held.at_peak, patterns) if h.role != RESIDENT
    ]  # fmt: skip


def _recomputed(plan: Plan, time: TimeAxis, patterns: dict[str, str], strings: Strings) -> list[list[Any]]:
    """Rows of (module pattern, what the op does, ops, times, cost, freed bytes, first and last time)."""
    rows = recomputed(plan.graph, plan.schedule, time.weights, patterns)
    return [
        [
            strings.add(r.module),
            strings.add(r.does),
            r.ops,
            r.times,
            *_shorts(r.cost),
            r.freed_bytes,
            *_shorts(r.first, r.last),
        ]
        for r in rows[:MOST_ROWS]
    ]


def _point(p: CurvePoint) -> dict[str, Any]:
    return {
        "peak": p.peak_bytes, "overhead": p.overhead, "flops": p.flops_overhead, "bound": p.bound_bytes,
        "least": p.least_overhead, "status": name(p.status), "solver": name(p.solver), "verified": p.verified,
        "ends": p.ends, "bytes": p.bytes,
    }  # fmt: skip


def _shorts(*xs: float) -> Iterable[float]:
    return map(_short, xs)


def _short(x: float) -> float:
    """To five digits, as a whole number where it is one: short in JSON."""
    y = float(f"{x:.5g}")
    return int(y) if y == int(y) and abs(y) < 2**53 else y
