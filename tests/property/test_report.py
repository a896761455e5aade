"""Pictures and tables: well-formed, self-contained, and the figures in them are the judge's."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rekindle.ask import Budget, Fraction, LeastMemory, PlanOptions
from rekindle.errors import UsageError
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import Plan
from rekindle.model.schedule import Schedule
from rekindle.planning import registry
from rekindle.planning.planner import plan_graph
from rekindle.saying.sizes import format_bytes
from rekindle.show import text
from rekindle.show.frontier_svg import frontier_svg
from rekindle.show.svg import byte_unit, ticks
from rekindle.show.timeline import LAYOUT, memory_timeline
from rekindle.show.tracks import Track, short_name
from strategies import copied_schedules, graphs, linked, run_sequences

SVG = "{http://www.w3.org/2000/svg}"


def chain(length: int, size: int = 1 << 20, resident: int = 0) -> Graph:
    """A joint chain: forward ops, boundary, backward ops that read the forward values."""
    ops = [Op(f"f{i}", (i,), (i + 1,), seconds=1.0, flops=1) for i in range(length)]
    ops.append(Op(BOUNDARY, (length,), (length + 1,), recompute=False))
    ops += [
        Op(f"b{i}", (2 * length - i, i), (2 * length - i + 1,), seconds=2.0, flops=2, backward=True)
        for i in range(length - 1, -1, -1)
    ]
    return Graph((Value(size),) * (2 * length + 2), tuple(ops), (2 * length + 1,), resident, f"chain of {length}")


def segments(graph: Graph, length: int, each: int) -> Schedule:
    """Forward again, segment by segment, from the back."""
    runs = list(range(length + 1))
    for first in range((length - 1) // each * each, -1, -each):
        last = min(length, first + each)
        runs += range(first, last) if last < length else ()
        runs += range(2 * length + 1 - last, 2 * length + 1 - first)
    return Schedule.from_runs(graph, runs, "segments")


def plans() -> list[Plan]:
    graph = chain(12)
    plain = plan_graph(graph, PlanOptions(Budget(2**40), solver="none"))
    other = simulate(graph, segments(graph, 12, 3))
    cheap = replace(plain, peak_bytes=other.peak_bytes, overhead=other.overhead, flops_overhead=other.flops_overhead)
    return [plain, cheap]


def parsed(svg: str) -> ET.Element:
    """The root of a picture that is XML, self-contained and said in words as well."""
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert not root.findall(f".//{SVG}script")
    assert not re.search(r"url\(|@import|href|https?://(?!www\.w3\.org/2000/svg)", svg)
    named = root.attrib["aria-labelledby"].split()
    assert [root.find(f"{SVG}{tag}").attrib["id"] for tag in ("title", "desc")] == named  # type: ignore[union-attr]
    return root


def words(root: ET.Element) -> list[str]:
    return ["".join(t.itertext()) for t in root.iter(f"{SVG}text")]


def tops(root: ET.Element) -> list[float]:
    """The highest point of each panel's outline, in pixels above the panel's bottom."""
    bottoms = sorted(float(e.attrib["y1"]) for e in root.iter(f"{SVG}line") if e.attrib["class"] == "axis")
    edges = [e.attrib["d"] for e in root.iter(f"{SVG}path") if e.attrib["class"] == "edge"]
    found = []
    for bottom, d in zip(bottoms, edges, strict=True):
        heights = [float(y) for y in re.findall(r"V([\d.]+)", d)]
        found.append(bottom - min(heights))
    return found


def test_the_peaks_drawn_are_the_peaks_judged() -> None:
    graph = chain(40, resident=10 << 20)
    planned = segments(graph, 40, 8)
    peaks = [simulate(graph, s).peak_bytes for s in (Schedule.baseline(graph), planned)]
    root = parsed(memory_timeline(graph, planned, budget=30 << 20, title="a < b & c"))
    said = [w for w in words(root) if w.startswith("peak ")]
    places = [Track.of(graph, s, "", graph.weights()).peak_place for s in (Schedule.baseline(graph), planned)]
    assert set(said) == {f"peak {format_bytes(p)} {place}" for p, place in zip(peaks, places, strict=True)}
    assert "30.0 MiB" in words(root)
    assert words(root).count("backward") == 2
    assert "a < b & c" in words(root)
    high = tops(root)
    assert high[1] / high[0] == pytest.approx(peaks[1] / peaks[0], abs=0.01)
    description = root.find(f"{SVG}desc").text or ""  # type: ignore[union-attr]
    assert all(f"{p} bytes" in description for p in peaks)


def test_a_peak_at_the_boundary_is_said_to_be_at_the_end_of_forward() -> None:
    ops = (Op("f", (0,), (1,)), Op(BOUNDARY, (1,), (2,), recompute=False), Op("b", (2, 1), (3,), backward=True))
    graph = Graph((Value(0), Value(1 << 20), Value(1 << 20), Value(0)), ops, (3,))
    svg = memory_timeline(graph, Schedule.baseline(graph))
    assert "peak 2.0 MiB at the end of forward" in words(parsed(svg))
    assert "boundary" not in svg


def test_ten_thousand_steps_keep_their_peak_and_stay_small() -> None:
    graph = chain(2500, size=4096)
    planned = segments(graph, 2500, 50)
    assert len(planned.steps) > 10_000
    svg = memory_timeline(graph, planned)
    assert len(svg) < 150_000
    peaks = [simulate(graph, s).peak_bytes for s in (Schedule.baseline(graph), planned)]
    high = tops(parsed(svg))
    assert high == pytest.approx([p / (peaks[0] * 1.16) * LAYOUT.panel_px for p in peaks], abs=0.2)


@pytest.mark.parametrize("layers", [30, 900])
def test_recomputed_runs_keep_their_colour(layers: int) -> None:
    """A stripe is never a tint, which over blue is the grey of what is held all step; the stripes have their share of the time
    also where many runs share a pixel."""
    graph = chain(layers)
    planned = segments(graph, layers, 6)
    stripes = lambda s: [  # noqa: E731
        e for e in parsed(memory_timeline(graph, s)).iter(f"{SVG}path") if e.attrib["class"] == "again"
    ]
    assert not stripes(Schedule.baseline(graph))
    (found,) = stripes(planned)
    assert "fill-opacity" not in found.attrib
    track = Track.of(graph, planned, "", graph.weights())
    pieces = found.attrib["d"].split("M")[1:]
    drawn = sum(float(re.findall(r"H([\d.]+)", p)[-1]) - float(p.split()[0]) for p in pieces)
    share = (track.again @ np.diff(track.ends, prepend=0.0)) / track.length
    assert drawn == pytest.approx(share * LAYOUT.across, abs=2 + 0.1 * len(pieces))


def test_what_is_held_all_step_leaves_the_picture_where_it_is_most_of_it() -> None:
    small, large = (parsed(memory_timeline(chain(20, resident=r), segments(chain(20, resident=r), 20, 5)))
                    for r in (10 << 20, 10 << 30))  # fmt: skip
    bases = [[e for e in root.iter(f"{SVG}rect") if e.attrib["class"] == "base"] for root in (small, large)]
    assert bases[0]
    assert not bases[1]
    assert any("above the 10.0 GiB held all step" in w for w in words(large))


def test_an_op_is_named_in_a_few_words() -> None:
    traced = Op("l.0|aten.relu.default|f32[8]", (), (), module="l.0", kind="aten", target="aten.relu.default")
    assert short_name(traced) == "l.0 relu"
    assert short_name(Op("w|accumulate|", (), (), module="w", kind="accumulate")) == "w accumulate"
    assert short_name(Op("boundary", (), (), kind="boundary")) == "the end of forward"
    assert short_name(Op("made by hand|x", (), ())) == "made by hand|x"
    assert len(short_name(Op("n" * 100, (), ()))) == 48


@given(st.data())
def test_every_graph_can_be_drawn_inside_its_frame(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = Schedule.from_runs(graph, data.draw(run_sequences(graph)))
    budget = data.draw(st.one_of(st.none(), st.integers(0, 1000)))
    root = parsed(memory_timeline(graph, schedule, budget=budget))
    for e in root.iter(f"{SVG}path"):
        for x in re.findall(r"[MH]([-\d.]+)", e.attrib["d"]):
            assert LAYOUT.left_px - 0.1 <= float(x) <= LAYOUT.right + 0.1


@given(st.data())
def test_what_is_away_and_waits_are_drawn(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    schedule = data.draw(copied_schedules(graph))
    judged = simulate(graph, schedule)
    track = Track.of(graph, schedule, "Planned", graph.weights("seconds"))
    root = parsed(memory_timeline(graph, schedule))
    drawn = words(root)
    last = {e.attrib.get("class"): i for i, e in enumerate(root.iter())}
    assert "waits" not in last or last["waits"] > last.get("base", -1)  # else what is held all step covers the strip
    assert ("on the host" in drawn) == bool(track.away.any())
    timed = bool(graph.weights("seconds").any())  # else the picture counts FLOPs or runs, and no seconds
    assert ("waits" in drawn) == bool(track.waits.any() and timed)
    assert track.memory.max(initial=graph.resident_bytes) == judged.peak_bytes
    assert track.length <= judged.seconds * (1 + 1e-9)
    taken = float(judged.runs @ graph.weights("seconds"))
    assert track.waits.sum() == pytest.approx(track.length - taken, abs=1e-6)
    starts, most, with_away, again, waits = track.columns(track.length, 50)
    assert len(starts) == len(most) == len(with_away) == len(again) == len(waits)
    assert (with_away >= most).all()


def test_bounds_that_are_not_verified_draw_no_area() -> None:
    proven = frontier_svg(plans(), "curve")
    claimed = frontier_svg([replace(p, verified=False) for p in plans()], "curve")
    assert ("certified" in proven, "certified" in claimed) == (True, False)
    assert (proven.count('class="never"'), claimed.count('class="never"')) == (1, 0)
    assert "not verified" in claimed


def test_frontier_has_a_point_per_plan() -> None:
    root = parsed(frontier_svg(plans(), title="curve"))
    points = [e for e in root.iter(f"{SVG}circle") if e.attrib["class"] == "point"]
    assert len(points) == 2
    across = [float(p.attrib["cx"]) for p in points]
    assert across == sorted(across)
    assert [float(p.attrib["cy"]) for p in points] == sorted(float(p.attrib["cy"]) for p in points)
    parsed(frontier_svg(plans()[:1]))
    with pytest.raises(UsageError):
        frontier_svg([])


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_are_round_and_inside(low: float, span: float, about: int) -> None:
    marks = ticks(low, low + span, about)
    assert len(marks) <= about + 1
    slack = span * 1e-6 + math.ulp(max(abs(low), abs(low + span))) * 4  # what floats of this size cannot tell apart
    assert all(low - slack <= t <= low + span + slack for t in marks)


def test_byte_units() -> None:
    assert [byte_unit(x)[0] for x in (0, 2047, 2048, 3 << 20, 3 << 30, 3 << 40)] == [
        "B",
        "B",
        "KiB",
        "MiB",
        "GiB",
        "TiB",
    ]


def test_tables_say_the_figures() -> None:
    plain, cheap = plans()
    row = {
        "model": "toy", "batch": 2, "modelled_plain_bytes": 4096, "plain_peak_bytes": 4096, "budget_bytes": 2048,
        "predicted_peak_bytes": 1536, "measured_peak_bytes": 1536, "flops_overhead": 0.125, "overhead": 0.25,
        "measured_overhead": 0.5, "measured_flops_overhead": 0.0625,
        "loss_equal": True, "gradients_equal": True, "buffers_equal": True,
        "rng_equal": False, "weights_equal": True, "plain_losses": [1.5], "planned_losses": [1.5],
    }  # fmt: skip
    bench = [{"model": "a[/b]", "method": "x", "peak_bytes": 2048, "overhead": 0.1, "gap": None, "ok": True}]
    out = io.StringIO()
    console = Console(file=out, width=160, markup=False)
    for table in (
        text.plan_table(cheap), text.frontier_table([plain, cheap]), text.frontier_table([]),
        text.solvers_table(registry.all_solvers()), text.demo_table(row), text.losses_table(row),
        text.bench_table(bench),
    ):  # fmt: skip
        console.print(table)
    said = out.getvalue()
    for figure in (format_bytes(cheap.peak_bytes), "+12.5 %", "+50.0 %", "1.5 KiB", "a[/b]", "+10.0 %", "NO"):
        assert figure in said


def test_a_plan_at_the_floor_names_the_op_to_split() -> None:
    graph = chain(12)
    least = plan_graph(graph, PlanOptions(LeastMemory(), solver="rotor"))
    assert least.splitting_op.startswith("b")
    assert re.search(f"to go lower, split +{least.splitting_op}:", str(least))
    assert plan_graph(graph, PlanOptions(Fraction(1.0), solver="none")).splitting_op == ""


def test_names_that_a_terminal_or_a_browser_would_obey_are_only_shown() -> None:
    evil = "\x1b[2J\x00\ud800</text><script>alert(1)</script>"
    graph = replace(chain(3), name=evil)
    graph = replace(graph, ops=tuple(replace(o, name=o.name + evil) if o.name != BOUNDARY else o for o in graph.ops))
    plan = plan_graph(graph, PlanOptions(LeastMemory(), solver="none"))
    for picture in (memory_timeline(graph, plan.schedule, title=evil), frontier_svg([plan], title=evil)):
        parsed(picture)
    html = replace(plan, bound_op=evil)._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "alert" in html


def test_what_was_not_proven_is_said_in_every_table() -> None:
    plan = replace(plans()[0], verified=False, least_overhead=0.1)
    out = io.StringIO()
    Console(file=out, width=160).print(text.plan_table(plan), text.frontier_table([plan]))
    assert out.getvalue().count("not verified") == 4
    assert "not verified" in str(plan)
    assert "not verified" in plan.sentence
