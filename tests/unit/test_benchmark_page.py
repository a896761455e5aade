"""The benchmark report: every figure on the page is a row's, nothing is made up where a row is silent, losses are told."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from marks import sweep
from rekindle.bench import run_suite
from rekindle.bench.row import Row
from rekindle.errors import UsageError

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from matplotlib import pyplot as plt
from page import frontier, growth, unit_costs
from page.document import made, write
from page.published import published_part
from page.rows import picked, read, table
from page.words import Words

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "report.py"
SVG = "{http://www.w3.org/2000/svg}"


def row(method: str, peak: float | None, flops: float | None = 0.0, **more: Any) -> Row:
    """A row of the model "m", whose plain step holds 1000 MB; no peak: a failed one."""
    name = re.split(r"[@=]", method)[0]
    tool = method == "plain" or name.startswith(("checkpoint-", "selective-", "compile-"))
    return {
        "suite": "seeds", "model": "m", "method": method, "solver": None if tool else name, "cost": "flops",
        "status": "failed" if peak is None else "ok", "peak_mb": peak, "plain_mb": 1000.0,
        "flops_overhead": None if peak is None else flops, "note": "",
    } | more  # fmt: skip


PLAIN = row("plain", 1000.0)


def said(svg: str) -> list[str]:
    """The words of a picture."""
    return ["".join(t.itertext()).strip() for t in ET.fromstring(svg).iter(f"{SVG}text")]


def cells(text: str, first: str, column: str) -> list[str]:
    """What stands in that column of the lines of Markdown tables whose first cell is that."""
    found, head = [], []
    for line in text.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        parts = [c.strip() for c in line.strip("|").split("|")]
        if not head:
            head = parts
        elif parts[0] == first and column in head:
            found.append(parts[head.index(column)])
    return found


def page(rows: list[Row], folder: str) -> tuple[str, dict[str, str]]:
    """The words of all pages, and the pictures."""
    pages, pictures = made(rows, folder)
    return "\n".join(pages.values()), pictures


# -- the published table and unit costs --------------------------------------------------------------------------------
def test_the_published_table_is_the_rows() -> None:
    known = {"batch": 64, "published_regular_mb": 1005, "published_ogc_mb": 400, "measured_ogc_nonreentrant_mb": 390.0}
    rows = [
        PLAIN | known, row("auto@33%", 195.0, 0.31, **known), row("auto=ogc", 380.0, 0.01, **known),
        row("auto=ogc", 385.0, 0.5, **known, cost="seconds", seconds_overhead=0.02),
    ]  # fmt: skip
    words = published_part(table(rows))
    assert cells(words, "m, 64", "OGC of regular") == ["39.8%"]
    assert cells(words, "m, 64", "at OGC's overhead") == ["195 (+31.0%)"]
    assert cells(words, "m, 64", "to OGC") == ["0.50"]
    assert cells(words, "m, 64", "at OGC's memory") == ["380"]
    assert cells(words, "m, 64", "extra FLOPs") == ["+1.0%"]
    assert cells(words, "m, 64", "extra time") == ["+2.0%"]
    timed = published_part(table([*rows[:2], rows[2] | {"seconds_overhead": 0.2}]))
    assert cells(timed, "m, 64", "extra time") == ["+20.0% §"]
    second = [r | {"model": "n"} for r in rows if r["method"] != "auto@33%"]
    second.append(row("auto@33%", 780.0, 0.3, **known, model="n"))
    both = published_part(table(rows + second))
    assert cells(both, "geometric mean", "to OGC") == ["1.00"]
    assert cells(both, "geometric mean", "of plain") == [f"{math.sqrt(0.195 * 0.78):.1%}"]


@pytest.mark.parametrize(
    ("figures", "mark", "ratio"),
    [
        ({"published_regular_mb": 1005, "published_ogc_mb": 400}, "¶", "0.50"),
        ({"published_regular_mb": 1300, "published_ogc_mb": 400}, "‡", "-"),
        ({"published_regular_mb": 1300, "published_ogc_mb": 400, "measured_ogc_nonreentrant_mb": 400.0}, "", "0.50"),
        ({"published_regular_mb": None, "published_ogc_mb": None}, "†", "-"),
    ],
)
def test_what_cannot_be_compared_is_not(figures: dict[str, Any], mark: str, ratio: str) -> None:
    words = published_part(table([PLAIN | figures, row("auto@33%", 200.0, 0.3, **figures)]))
    assert cells(words, f"m, -{mark}", "to OGC") == [ratio]
    assert (f"- {mark} " in words) == bool(mark)


def test_means_in_unit_costs_are_over_what_is_reached() -> None:
    def unit(model: str, method: str, peak: float | None, overhead: float | None, **more: Any) -> Row:
        return row(method, peak, 0.5, suite="modern", model=model, cost="unit", overhead=overhead, **more)

    rows = [
        unit("a", "auto=0.5", 500.0, 0.02, least_overhead=0.01, nodes_overhead=0.015),
        unit("a", "auto=0.25", 249.0, 0.10, least_overhead=0.07),
        unit("b", "auto=0.5", 480.0, 0.06, nodes_overhead=0.045), unit("b", "auto=0.25", None, None, bound_mb=301.0),
        unit("c", "auto=0.25", None, None), unit("d", "auto=0.25", None, None),
        unit("d", "auto@14%", 400.0, 0.14, bound_mb=390.0),
    ]  # fmt: skip
    words = unit_costs.unit_part(table(rows))
    assert cells(words, "mean", "auto=0.5") == ["+4.0%"]
    assert cells(words, "mean", "auto=0.25") == ["+10.0%"]
    assert cells(words, "a", "auto=0.25") == ["+10.0% (≥ 7.0%) at 24.9%"]
    assert cells(words, "b", "auto=0.5") == ["+6.0% at 48.0%"]
    assert cells(words, "mean, certified to be at least", "auto=0.25") == ["+7.0%"]
    assert cells(words, "mean, certified to be at least", "auto=0.5") == ["-"]
    assert cells(words, "FastSA, published mean", "auto=0.25") == ["+18.0%"]
    assert cells(words, "a", "auto=0.5, nodes") == ["+1.5%"]
    assert cells(words, "mean", "auto=0.5, nodes") == ["+3.0%"]
    assert cells(words, "mean", "auto=0.25, nodes") == ["-"]  # of one of the rows that are there
    assert cells(words, "FastSA, published mean", "auto=0.25, nodes") == ["+18.0%"]
    assert cells(words, "b", "auto=0.25") == ["impossible"]
    assert cells(words, "b", "certified") == ["none below 30.1%"]
    assert cells(words, "c", "auto=0.25") == ["not reached"]
    assert cells(words, "c", "auto=0.5") == ["not run"]
    assert cells(words, "d", "certified") == ["none below 39.0% within +14.0% op runs"]
    assert "25%: 1 reached, 2 certified impossible, 1 neither" in words


# -- growth and log axes -----------------------------------------------------------------------------------------------
def deep() -> list[Row]:
    rows = []
    for n in (64, 256, 512, 4096):
        for method, peak in (
            ("plain", 3.0 * n),
            ("chen-sqrt", 5 * math.sqrt(n)),
            ("auto@100%", 7 * math.log(n)),
            ("auto=chen-sqrt", 4 * math.sqrt(n)),
            ("auto=compile-0", 3.0 * n),
            ("auto=0.5", 1.5 * n),
        ):
            rows.append(row(method, peak, 0.3, suite="deep", model=f"lstm-{n}", cost="seconds"))
    return rows


def test_growth_is_measured_against_the_laws() -> None:
    found = {method: of for (_, method), of in growth.growths(table(deep())).items()}
    assert set(found) == {"plain", "chen-sqrt", "auto@100%", "auto=chen-sqrt", "auto=0.5"}
    assert growth.exponent(found["plain"]) == pytest.approx(1)
    assert growth.exponent(found["chen-sqrt"]) == pytest.approx(0.5)
    laws = {"peak": 8, "n": 8, "√n": math.sqrt(8), "log n": math.log(4096) / math.log(512)}
    assert growth.factors(found["plain"]) == pytest.approx(laws)
    pictures: dict[str, str] = {}
    words = growth.growth_part(table(deep()), "x", pictures)
    assert list(pictures) == ["growth-lstm.svg"]
    assert cells(words, "plain", "at most as") == ["n"]
    assert cells(words, "chen-sqrt", "at most as") == ["√n"]
    assert cells(words, "auto@100%", "at most as") == ["log n"]
    assert cells(words, "chen-sqrt", "peak MB") == [f"{5 * math.sqrt(512):.1f} to {5 * 64:.1f}"]
    assert growth.growths(table([r for r in deep() if r["model"] == "lstm-64"])) == {}


def test_a_thousand_layers_beside_the_paper() -> None:
    more = {"suite": "deep", "model": "resnet-1000", "cost": "seconds"}
    rows = [
        row("plain", 48000.0, **more), row("auto@30%", 3000.0, 0.4, seconds_overhead=0.29, **more),
        row("auto", 1000.0, 0.9, seconds_overhead=0.8, **more),
    ]  # fmt: skip
    words = growth.growth_part(table(rows), "x", {})
    assert cells(words, "ours, auto@30%, modelled", "planned, GB") == [f"{3000 * 2**20 / 1e9:.2f}"]
    assert cells(words, "Chen et al., measured", "planned, GB") == ["7"]
    assert growth.growth_part(table(rows[2:]), "x", {}).count("no row within that time") == 1


# -- curves ------------------------------------------------------------------------------------------------------------
def many() -> list[Row]:
    """A model under every kind of method, three of them on the same spot and one far beyond the edge."""
    rows = [
        PLAIN, row("checkpoint-blocks", 600.0, 0.3), row("compile-0.5", 610.0, 0.05), row("feng", 600.0, 0.3),
        row("hong", 600.0, 0.3), row("dtr", 300.0, 2.5), row("kusumoto", None, note="why | not"),
        row("auto@8%", 450.0, 0.08, overhead=0.08, bound_mb=400.0), row("auto@33%", 300.0, 0.3, overhead=0.3, bound_mb=250.0),
        row("auto=0.5", 500.0, 0.09),
    ]  # fmt: skip
    return [r | {"seconds_overhead": None if r["peak_mb"] is None else r["flops_overhead"] / 2} for r in rows]


def test_a_picture_shows_every_method_and_loads_nothing() -> None:
    svg = frontier.frontier_svg(table(many()))
    words = said(svg)
    for method in (
        "plain",
        "checkpoint-blocks",
        "compile-0.5",
        "feng",
        "hong",
        "dtr",
        "auto@8%",
        "auto@33%",
        "auto=0.5",
    ):
        assert method in words
    assert "kusumoto" not in words
    assert "+250%" in words
    assert "extra time (modelled)" in words
    assert "certified: no plan here without rewrites" in words
    assert "<script" not in svg
    assert "onload" not in svg
    assert svg == frontier.frontier_svg(table(many()))  # equal on every run


def test_words_beside_marks_meet_no_other_words() -> None:
    figure = plt.figure(figsize=(4, 3))
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    placed = Words(axes, [0.5] * 5, [0.5] * 5)
    for label in ("plain step", "auto", "checkpoint-blocks", "compile", "selective-matmul"):
        placed.beside([0.5], [0.5], label, "black")
    boxes = placed.taken
    assert len(boxes) == len(axes.texts) == 5
    assert not any(a.meets(b) for i, a in enumerate(boxes) for b in boxes[:i])
    plt.close(figure)


def test_five_methods_have_words_and_memory_is_across() -> None:
    axes = frontier.frontier(table(many())).axes[0]
    written = {t.get_text() for t in axes.texts}
    assert written == {"plain step", "auto", "checkpoint-blocks", "compile", "certified: no plan here without rewrites"}
    assert axes.get_xlabel() == "peak, share of the plain step's"
    assert axes.get_ylabel() == "extra FLOPs (measured)"


def test_the_staircase_and_the_floor() -> None:
    rows = table(many())
    points = frontier.points(rows, "flops")
    stairs = frontier.staircase(points[points["kind"] == "auto"])
    assert list(zip(stairs["method"], stairs["share"], strict=True)) == [("auto@8%", 0.45), ("auto@33%", 0.3)]

    def floors(rows: list[Row], measure: str) -> list[tuple[float, float]]:
        found = frontier.floors(table(rows), measure)
        return list(zip(found["extra"], found["share"], strict=True))

    assert floors(many(), "flops") == [(0.08, 0.4), (0.3, 0.25)]
    assert floors(many(), "seconds") == []  # bounds hold in the cost they were planned in
    weak = [row("auto@1%", 900.0, 0.01, overhead=0.01, bound_mb=200.0)]  # what holds at 8 % holds at 1 % too
    assert floors(many() + weak, "flops") == [(0.08, 0.4), (0.3, 0.25)]
    other = row(
        "auto@50%", 600.0, 0.5, overhead=0.5, bound_mb=500.0
    )  # a bound of a rewritten step is none of the captured one
    for of_which in ({"rewrites": 1, "slices": 0}, {"slices": 0}):
        assert floors([*many(), other | of_which], "flops") == [(0.08, 0.4), (0.3, 0.25)]
    assert floors([*many(), other | {"rewrites": 0, "slices": 0}], "flops") == [(0.5, 0.5)]


def test_rows_without_modelled_time_give_one_panel() -> None:
    rows = [{k: v for k, v in r.items() if k != "seconds_overhead"} for r in many()]
    words = said(frontier.frontier_svg(table(rows)))
    assert "extra FLOPs (measured)" in words
    assert "extra time (modelled)" not in words
    with pytest.raises(UsageError):
        frontier.frontier_svg(table([row("auto", None)]))


def test_a_row_planned_in_the_measure_goes_before_another() -> None:
    rows = [row("auto", 400.0, cost="unit"), row("auto", 500.0, cost="seconds"), row("auto", None, cost="flops")]

    def peak(rows: list[Row], cost: str) -> list[float]:
        return picked(table(rows), cost)["peak_mb"].tolist()

    assert peak(rows, "seconds") == [500.0]
    assert peak([row("auto", 300.0), *rows], "seconds") == [500.0]
    assert peak(rows, "unit") == [400.0]
    assert peak(rows, "flops") == [500.0]


# -- the page ----------------------------------------------------------------------------------------------------------
def test_every_picture_is_shown_and_every_shown_picture_is_there(tmp_path: Path) -> None:
    rows = (
        many() + deep() + [row("auto", 300.0, 0.1, model="odd / name", ops=300, solve_seconds=2.0, trace_seconds=1.0)]
    )
    out = tmp_path / "page.md"
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "stale.svg").write_text("<svg/>")
    (tmp_path / "page" / "stale.md").write_text("# gone")
    files = write(rows, out)
    words = "\n".join(f.read_text(encoding="utf-8") for f in files if f.suffix == ".md")
    pictures = [f for f in files if f.suffix == ".svg"]
    shown = [name.removeprefix("./") for name in re.findall(r"\]\(([^)]+\.svg)\)", words)]
    assert sorted(shown) == sorted(f.name for f in pictures)
    assert {f.name for f in (tmp_path / "page").iterdir()} == {f.name for f in files[1:]}
    for f in pictures:
        ET.parse(f)
    assert "why \\| not" in words
    assert "seeds-odd-name.svg" in shown
    assert "times.svg" in shown
    assert [f.name for f in files[:4]] == ["page.md", "seeds.md", "deep.md", "appendix.md"]
    with pytest.raises(UsageError, match="at least one row"):
        write([], out)


def test_rows_without_the_newer_fields_are_reported(tmp_path: Path) -> None:
    """Of files written before modelled time, costs and bounds were in a row; a JSON document with the rows in a list."""
    newer = ("cost", "target", "ops", "seconds_overhead", "overhead", "bound_mb", "gap", "plan_status", "commit")
    kept = [r for r in read([SCRIPT.parent / "results" / "2026-11-21-bench-seeds.jsonl"]) if r.get("cost") == "flops"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"rows": [{k: v for k, v in r.items() if k not in newer} for r in kept]}))
    found = read([old])
    words, pictures = page(found, "x")
    assert len(found) == len(kept) >= 18 * 14
    assert len(pictures) == 18
    by = {(r["model"], r["method"]): r for r in found}
    one = by["resnet50", "auto@33%"]
    assert cells(words, "resnet50, 64", "at OGC's overhead") == [
        f"{one['peak_mb']:,.0f} ({one['flops_overhead']:+.1%})"
    ]
    assert cells(words, "resnet50, 64", "to OGC") == [f"{one['peak_mb'] / one['measured_ogc_nonreentrant_mb']:.2f}"]
    assert "No row states its modelled time" in words
    planned = [r for r in found if r["predicted_mb"] and r["peak_mb"]]
    assert f"{max(abs(r['peak_mb'] / r['predicted_mb'] - 1) for r in planned):.2%}" in words


@sweep
def test_a_measured_suite_becomes_a_page(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "b.md"
    importlib.import_module("comparators")  # registers one of the methods
    measured = list(run_suite("smoke", ["cnn"], ["plain", "checkpoint-sequential", "chen-sqrt", "auto@33%"]))
    path.write_text("".join(json.dumps(r) + "\n" for r in measured))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rows", str(path), "--out", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    words = "\n".join(f.read_text(encoding="utf-8") for f in [out, *(tmp_path / "b").glob("*.md")])
    ran = [r for r in measured if r["status"] == "ok"]
    assert {"plain", "chen-sqrt", "auto@33%"} <= {r["method"] for r in ran}
    svg = (tmp_path / "b" / "smoke-cnn.svg").read_text(encoding="utf-8")
    shown = said(svg)
    plain = next(r["peak_mb"] for r in ran if r["method"] == "plain")
    for r in ran:
        assert r["method"] in shown
        assert f"{r['peak_mb'] / plain:.1%}" in shown
        assert f"{r['flops_overhead']:+.1%}" in shown
    slowest = max(r["solve_seconds"] for r in ran if r["method"].startswith("auto"))
    assert cells(words, "cnn", "auto, longest s") == [f"{slowest:.2f}"]
    compared = sum(r["method"] in ("plain", "checkpoint-sequential", "chen-sqrt") for r in ran)
    assert cells(words, "FLOPs", "rows compared") == [str(compared)]
    for r in measured:
        if r["status"] != "ok":
            assert r["method"] in cells(words, "cnn", "method")


def test_the_script_says_what_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"suite": \n')
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rows", str(path), "--out", str(tmp_path / "b.md")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "line 1 is no row" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "b.md").exists()


def test_small_models_on_a_cpu_stand_apart() -> None:
    def small(method: str, peak: float, wall: float | None, parity: bool | None) -> Row:
        return row(method, peak, suite="cpu", wall_ratio=wall, parity=parity)

    rows = [PLAIN, small("plain", 1000.0, None, None)]
    rows += [small("auto=0.5", 500.0, 1.25, True), small("auto=0.3", 250.0, 1.5, False)]
    words, _ = page(rows, "x")
    assert cells(words, "m", "auto=0.5") == ["50.0%, 1.25 x"]
    assert cells(words, "m", "parity") == ["1 of 2"]
    assert "### m (cpu)" not in words


def test_the_summary_is_short_and_leads_to_every_page() -> None:
    """One table, where auto loses, and links; commits and commands stand in the appendix alone."""
    rows = [r | {"commit": "c0ffee1", "hardware": "a machine"} for r in many() + deep()]
    pages, _ = made(rows, "x")
    assert list(pages) == ["", "seeds", "deep", "appendix"]
    assert all(f"(x/{name}.md)" in pages[""] for name in list(pages)[1:])
    assert "c0ffee1" in pages["appendix"]
    assert not any("c0ffee1" in words for name, words in pages.items() if name != "appendix")
    assert cells(pages[""], "`torch.utils.checkpoint` around each block", "memory") == ["60.0%"]
    assert cells(pages[""], "**Rekindle**, least memory within +8 % FLOPs", "extra FLOPs") == ["+8.0%"]
    head = next(x for x in pages[""].split("\n") if x.startswith("| method"))
    assert head.index("extra time") < head.index("extra FLOPs")
    assert "## Where auto loses" in pages[""]


def test_links_between_the_pages_lead_somewhere(tmp_path: Path) -> None:
    rows = many() + deep() + [row("auto=0.5", 500.0, suite="cpu", wall_ratio=1.2, parity=True)]
    files = {
        f.resolve(): f.read_text(encoding="utf-8") for f in write(rows, tmp_path / "benchmarks.md") if f.suffix == ".md"
    }
    followed = 0
    for path, words in files.items():
        for target, anchor in re.findall(r"\]\(([^)#]*\.md)?(?:#([^)]+))?\)", words):
            to = (path.parent / target).resolve() if target else path
            assert to in files, (path.name, target)
            heads = {
                re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-")
                for h in re.findall(r"^#+ (.*)$", files[to], re.M)
            }
            assert not anchor or anchor in heads or anchor in OFTEN_ABSENT, (path.name, target, anchor)
            followed += 1
    assert followed > 8


# of parts that appear where the rows have what they tell
OFTEN_ABSENT = {"modern-models-at-half-and-a-quarter-of-the-memory", "the-published-table-beside-ours", "solve-times"}


def test_a_models_name_is_no_markup() -> None:
    pages, _ = made([PLAIN | {"model": "<img src=x>[a](b)"}, row("auto", 500.0, model="<img src=x>[a](b)")], "x")
    assert "<img" not in pages["seeds"].split("| model")[0]
    assert "&lt;img src=x&gt;" in pages["seeds"]
