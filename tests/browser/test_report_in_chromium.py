"""The report in a real browser, at the widths of a desk and of a phone: it says nothing on the console, asks nothing of the
network, and hover, zoom and clicks work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rekindle
from command_line import PLAIN, step
from opened_page import Page
from rekindle.ask import MaxOverhead
from rekindle.model.graph import Graph
from rekindle.parts.plan import Part, PartsPlan
from rekindle.show.report import document
from rekindle.show.report import make as write
from rekindle.show.report.curve import CurvePoint
from traced_steps import PAGE, blocks

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report with a hostile name, one of a plan without a curve, and one of a model's parts."""
    folder = tmp_path_factory.mktemp("reports")
    found = {name: folder / f"{name}.html" for name in ("plan", "bare", "parts")}
    graph = blocks(8, name=EVIL, model=f"layers.{EVIL.replace('.', '')}")
    plan = rekindle.plan(graph, 0.6, solver="every", cache=False)
    front = rekindle.frontier(graph, solver="rotor", cache=False)
    plan.to_html(found["plan"], frontier=front)
    plan.to_html(found["bare"], frontier=False)
    head = rekindle.plan(blocks(3), 0.8, solver="every", cache=False)
    parts = PartsPlan(
        EVIL, (Part("blocks.0", (plan,)), Part("head", (head,))), 400 * PAGE, None,
        30 * PAGE, None, 0.1, 0.0, MaxOverhead(0.1), "seconds", f"planned: {EVIL}", 1.0,
    )  # fmt: skip
    parts.to_html(found["parts"], frontier=False)
    return found


@pytest.mark.parametrize("which", ["plan", "bare", "parts"])
def test_no_message_no_request_no_sideways_scrolling(
    chromium: Any, pages: dict[str, Path], width: int, which: str
) -> None:
    page = Page(chromium, pages[which], width)
    assert EVIL in page.js("return document.querySelector('h1').textContent")
    assert page.js("return document.images.length") == 0
    assert page.js("return document.documentElement.scrollWidth") <= width
    for opened in range(page.js("return document.querySelectorAll('details').length")):
        page.js("document.querySelectorAll('details')[arguments[0]].open = true", opened)
    console, urls = page.read_logs()
    assert console == []
    assert urls == [pages[which].as_uri()]


def test_hover_names_the_operator(chromium: Any, pages: dict[str, Path], width: int) -> None:
    page = Page(chromium, pages["plan"], width)
    assert page.tooltip() == ""
    page.mouse("mouseMoved", page.center(".memory", 0.5, 0.75))
    said = page.tooltip()
    assert "f32[" in said
    assert f"layers.{EVIL.replace('.', '')}" in said
    assert "models/net.py:" in said
    assert "memory held" in said
    page.mouse("mouseMoved", page.center("h1"))
    assert page.tooltip() == ""
    assert page.read_logs()[0] == []


def test_wheel_drag_and_buttons_zoom(chromium: Any, pages: dict[str, Path], width: int) -> None:
    page = Page(chromium, pages["plan"], width)
    whole, words = page.shown(), page.axis()
    page.mouse("mouseWheel", page.center(".memory"), deltaX=0, deltaY=-300)
    page.drawn()
    near = page.shown()
    assert near[1] - near[0] < 0.9 * (whole[1] - whole[0])
    assert page.axis() != words
    page.click("button[title='Show the whole step']")
    assert page.shown() == whole
    left, right = page.center(".memory", 0.4), page.center(".memory", 0.6)
    page.mouse("mousePressed", left, button="left", clickCount=1)
    page.mouse("mouseMoved", right, button="left")
    page.mouse("mouseReleased", right, button="left", clickCount=1)
    dragged = page.shown()
    assert 0.1 < (dragged[1] - dragged[0]) / (whole[1] - whole[0]) < 0.4
    page.click("button[title='Zoom out']")
    assert page.shown()[1] - page.shown()[0] > dragged[1] - dragged[0]
    page.click("button[title='Later']")
    assert page.shown()[0] > dragged[0] - (dragged[1] - dragged[0])
    assert page.read_logs()[0] == []


def test_two_fingers_zoom(chromium: Any, pages: dict[str, Path]) -> None:
    page = Page(chromium, pages["plan"], 390)
    page.command("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        whole = page.shown()
        a, b = page.center(".memory", 0.45), page.center(".memory", 0.55)
        touch = lambda kind, *at: page.command(  # noqa: E731
            "Input.dispatchTouchEvent",
            type=kind,
            touchPoints=[{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(at)],
        )
        touch("touchStart", a, b)
        for step in range(1, 6):
            touch("touchMove", (a[0] - 12 * step, a[1]), (b[0] + 12 * step, b[1]))
        touch("touchEnd")
        near = page.shown()
    finally:
        page.command("Emulation.setTouchEmulationEnabled", enabled=False)
    assert near[1] - near[0] < 0.6 * (whole[1] - whole[0])


def test_keys_move_and_zoom(chromium: Any, pages: dict[str, Path]) -> None:
    page = Page(chromium, pages["plan"], 1280)
    page.js("document.querySelector('.memory').focus()")
    press = lambda key: page.js(  # noqa: E731
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", key
    )
    press("ArrowRight")
    first = page.tooltip()
    press("ArrowRight")
    assert first != page.tooltip() != ""
    whole = page.shown()
    press("+")
    assert page.shown() != whole
    press("0")
    assert page.shown() == whole
    press("Escape")
    assert page.tooltip() == ""


def test_a_click_on_the_curve_changes_the_figures(chromium: Any, pages: dict[str, Path], width: int) -> None:
    page = Page(chromium, pages["plan"], width)
    details = lambda: page.js("return document.querySelector('.details').innerText")  # noqa: E731
    before = details()
    assert before.startswith("This plan")
    page.click("[data-point='0'] .shown")
    first = details()
    assert first.startswith("Point 1 of")
    assert page.js("return document.querySelectorAll('.details figure svg path').length") == 3
    last = page.js("return document.querySelectorAll('.point').length") - 2
    page.click(f"[data-point='{last}'] .shown")
    assert details() not in (before, first)
    assert page.read_logs()[0] == []


def test_a_certificate_that_was_not_verified_is_shown_as_its_files_own(
    chromium: Any, tmp_path: Path, width: int
) -> None:
    """The file claims an optimum that nobody can prove, and the points of its curve claim bounds of their own."""
    plan = rekindle.plan(blocks(8), 0.6, solver="every", cache=False)
    claims = replace(
        plan, verified=False, status="optimal", bound_bytes=plan.peak_bytes, gap=0.0, least_overhead=plan.overhead
    )
    graph = plan.graph
    point = replace(CurvePoint.of(plan, graph.weights()), verified=False, ends=(), bytes=())
    data = document.of_plan(claims, [[point]])
    file = tmp_path / "report.html"
    file.write_text(write.page(data))
    page = Page(chromium, file, width)
    said = page.js("return document.getElementById('report').textContent")
    assert "proven for every possible schedule" not in said.lower()
    assert "certified" not in said.lower()
    assert "proven: " not in said
    assert "not verified" in page.js("return document.querySelector('.memory .bound').textContent")
    assert page.js("return document.querySelectorAll('.curve .never').length") == 0
    assert "its file says: none this cheap below" in page.js("return document.querySelector('.details').textContent")
    page.js(
        "document.querySelector('[data-point=\"0\"]').dispatchEvent(new Event('click'))"
    )  # below the plan's own mark
    assert "holds no schedule" in page.js("return document.querySelector('.details').textContent")
    # one that was verified is still certified, and draws the area
    file.write_text(write.page(document.of_plan(plan, [[point]])))
    page = Page(chromium, file, width)
    assert "certified" in page.js("return document.querySelector('.memory .bound').textContent")
    assert page.js("return document.querySelectorAll('.curve .never').length") == 1
    assert page.read_logs()[0] == []


def test_a_bound_on_the_cost_is_never_rounded_up(chromium: Any, tmp_path: Path) -> None:
    plan = replace(
        rekindle.plan(blocks(8), 0.6, solver="every", cache=False), status="feasible", least_overhead=0.12395
    )
    file = tmp_path / "report.html"
    file.write_text(write.page(document.of_plan(plan, [[CurvePoint.of(plan, plan.graph.weights())]])))
    page = Page(chromium, file, 1280)
    for selector in (".figures", ".details"):
        said = page.js("return document.querySelector(arguments[0]).textContent", selector)
        assert "+12.3 %" in said.replace("\xa0", " ")
        assert "+12.4" not in said


def test_a_graph_without_seconds_says_so(chromium: Any, tmp_path: Path) -> None:
    """Its time is counted in runs, and its extra cost is not."""
    graph = blocks(8)
    graph = replace(graph, ops=tuple(replace(o, seconds=0.0, flops=0) for o in graph.ops))
    file = tmp_path / "report.html"
    rekindle.plan(graph, 0.6, solver="every", cache=False).to_html(file, frontier=False)
    page = Page(chromium, file, 1280)
    assert "no op has seconds" in page.js("return document.querySelector('.figures').textContent")
    assert "proven: " not in page.js("return document.querySelector('.figures').textContent")
    heads = page.js("return [...document.querySelectorAll('th')].map(h => h.textContent)")
    assert "of the baseline's runs" in heads
    assert "of the baseline" not in heads


def test_copies_to_the_host_have_colours_of_their_own(chromium: Any, tmp_path: Path, width: int) -> None:
    linked = replace(step(), link=rekindle.Link(1e3, 1e3, 0.0))
    words = ("on the host alone", "brought back from the host", "waits for copies")
    for offload in (True, False):
        path = tmp_path / f"{offload}.html"
        rekindle.plan(linked, PLAIN - 10, offload=offload, cache=False).to_html(path, frontier=True)
        page = Page(chromium, path, width)
        legend, shown = (page.js(f"return document.querySelector('{x}').innerText") for x in (".legend", "#report"))
        assert [w in legend for w in words] == [offload] * 3
        assert page.js("return document.querySelectorAll('.memory .fill.away').length") == int(offload)
        assert ("no plan without copies exists" in shown) == ("copied to the host" in shown) == offload
        assert page.read_logs()[0] == []


def test_an_empty_graph_has_a_report(chromium: Any, tmp_path: Path) -> None:
    plan = rekindle.plan(Graph((), (), (), 0, "empty"), 1.0, solver="none", cache=False)
    file = tmp_path / "report.html"
    plan.to_html(file, frontier=[plan])
    page = Page(chromium, file, 1280)
    page.js("document.querySelector('[data-point=\"0\"]').dispatchEvent(new Event('click'))")
    said = page.js("return document.getElementById('report').textContent")
    assert "NaN" not in said
    assert "Nothing runs in this graph." in said
    assert page.read_logs()[0] == []


def test_tiles_open_and_the_trail_leads_back(chromium: Any, pages: dict[str, Path], width: int) -> None:
    page = Page(chromium, pages["plan"], width)
    trail = lambda: page.js("return document.querySelector('.trail').innerText")  # noqa: E731
    labels = lambda: page.js("return [...document.querySelectorAll('.tile')].map(t => t.ariaLabel)")  # noqa: E731
    before, tiles = trail(), labels()
    assert any("held all step" in words for words in tiles)
    page.mouse("mouseMoved", page.center(".tile:not(.resident)"))
    assert "bytes" in page.tooltip()
    page.click(
        ".tile.group" if page.js("return document.querySelector('.tile.group') !== null") else ".tile:not(.resident)"
    )
    assert trail() != before
    page.click(".trail button")
    assert trail() == before
    page.click("section:nth-of-type(2) button[aria-pressed='false']")
    assert labels() != tiles
    assert page.read_logs()[0] == []


def test_the_second_part_is_drawn_when_it_is_opened(chromium: Any, pages: dict[str, Path], width: int) -> None:
    page = Page(chromium, pages["parts"], width)
    count = lambda: page.js("return document.querySelectorAll('.memory').length")  # noqa: E731
    assert count() == 1
    page.click(".part:nth-of-type(2) > summary")
    page.drawn()
    assert count() == 2
    assert page.js("return document.querySelectorAll('.memory')[1].querySelectorAll('path').length") > 0
    assert page.read_logs()[0] == []


def test_dark_and_light_differ(chromium: Any, pages: dict[str, Path]) -> None:
    page = Page(chromium, pages["plan"], 1280)
    grounds = set()
    for scheme in ("light", "dark"):
        page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        grounds.add(page.js("return getComputedStyle(document.body).backgroundColor"))
    page.command("Emulation.setEmulatedMedia", features=[])
    assert len(grounds) == 2
