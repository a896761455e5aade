"""Plans as documents: a small one, and ways to damage it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from command_line import step
from rekindle.ask import Budget, LeastMemory, PlanOptions
from rekindle.model import formats
from rekindle.model.graph import Graph, Op, Value
from rekindle.model.plan import Plan
from rekindle.parts.plan import Part, PartsPlan
from rekindle.planning.planner import plan_graph

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.sampled_from([2**63, -(2**63), 10**400, 1e308, -1.5, 0.5]),
    st.text(max_size=3), st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=1),
)  # fmt: skip


def toy() -> Graph:
    ops = (Op("f", (0,), (1,), seconds=1.0, flops=8), Op("g", (1,), (2,), seconds=0.5, inplace=(1,)))
    return Graph((Value(1), Value(10), Value(4)), ops, (2,), resident_bytes=100, name="toy")


def toy_plan() -> Plan:
    return plan_graph(toy(), PlanOptions(Budget(4096), solver="none"))


def places(doc: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every part of a document."""
    found = [path] if path else []
    items = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    for key, part in items:
        found += places(part, (*path, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, doc: Any) -> Any:
    """The document with one part exchanged, left out or, in a list, doubled."""
    doc = copy.deepcopy(doc)
    *path, last = draw(st.sampled_from(places(doc)))
    parent = doc
    for key in path:
        parent = parent[key]
    what = draw(st.sampled_from(["exchange", "drop", "double"]))
    if what == "drop":
        del parent[last]
    elif what == "double" and isinstance(parent, list):
        parent.insert(last, parent[last])
    else:
        parent[last] = draw(junk)
    return doc


def tampered(tmp_path: Path, **fields: Any) -> Path:
    formats.write_json(tmp_path / "plan.json", toy_plan().to_json() | fields)
    return tmp_path / "plan.json"


def parts_plan(baseline: int | None = 900, paths: tuple[str, ...] = ("h.0", "h.1", "h.2")) -> PartsPlan:
    """Equal parts that recompute what they can, and one that runs again whole."""
    own = plan_graph(step(), PlanOptions(LeastMemory(), solver="exact"))
    parts = (*(Part(path, (own,)) for path in paths), Part("head", again=True))
    return PartsPlan(
        "Model", parts, peak_bytes=700, measured_bytes=690, resident_bytes=300, baseline_peak_bytes=baseline, overhead=0.25,
        least_overhead=0.0, goal=Budget(800), cost="seconds", covered="planned: 3 of 4 parts", solve_seconds=1.0,
    )  # fmt: skip
