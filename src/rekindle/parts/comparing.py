"""Compares two plans of any kind: of whole steps, or of the parts of a model."""

from __future__ import annotations

from typing import Any

from ..explain.comparison import Comparison, Sizes, compare_plans, differences, graph_differences, they_are
from ..explain.modules import paths_pattern
from ..model.plan import Plan
from .explaining import explain_parts
from .plan import PartsPlan

FIGURES = (
    "peak_bytes", "activation_peak_bytes", "baseline_peak_bytes", "measured_bytes", "resident_bytes", "seconds", "overhead",
    "least_overhead", "cost", "verified", "goal", "covered",
)  # fmt: skip


def compare(a: Plan | PartsPlan, b: Plan | PartsPlan, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Two plans side by side. names : how the two are called, in the answer."""
    if isinstance(a, Plan) and isinstance(b, Plan):
        return compare_plans(a, b, names)
    figures = {key: (_figure(a, key), _figure(b, key)) for key in FIGURES}
    if isinstance(a, PartsPlan) and isinstance(b, PartsPlan):
        return Comparison(*names, figures, differences(*(_parts(p) for p in (a, b))), _graphs(a, b, names))
    kinds = ["the plan of a whole step" if isinstance(p, Plan) else "plans of parts" for p in (a, b)]
    return Comparison(*names, figures, (), (f"{names[0]} holds {kinds[0]}, {names[1]} holds {kinds[1]}.",))


def _figure(plan: Plan | PartsPlan, key: str) -> Any:
    if key == "resident_bytes" and isinstance(plan, Plan):
        return plan.graph.resident_bytes
    return plan.goal.to_json() if key == "goal" else getattr(plan, key, None)


def _parts(plan: PartsPlan) -> dict[str, tuple[int, Sizes]]:
    """pattern of the parts of one plan -> (how many, their figures)."""
    return {
        f"{r.pattern} ({r.kind})": (r.count, Sizes(r.kept_bytes, r.recomputed_bytes, 0, r.added_seconds))
        for r in explain_parts(plan).rows
    }


def _graphs(a: PartsPlan, b: PartsPlan, names: tuple[str, str]) -> tuple[str, ...]:
    """Which parts are in one plan alone, and the differences of the first part whose graphs differ."""
    here, there = ({part.path: part for part in p.parts} for p in (a, b))
    found = []
    for one, two, whose in ((here, there, names[0]), (there, here, names[1])):
        if alone := [path for path in one if path not in two]:
            found.append(f"{they_are(len(alone), 'part')} in {whose} alone: {paths_pattern(alone, list(one))}.")
    for path in here:
        pairs = zip(here[path].plans, there[path].plans, strict=False) if path in there else ()
        for p, q in pairs:
            if p.graph_hash != q.graph_hash:
                return (*found, f"Part {path} has another graph.", *graph_differences(p.graph, q.graph, names))
    return tuple(found)
