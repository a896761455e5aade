"""Labels, names and figures of the report stand where they can be read, and every way of a part has its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rekindle
from opened_page import Page
from rekindle.ask import Budget, TraceOptions
from rekindle.compiling import CompileOptions
from rekindle.parts.plan import CompiledPart, Offloaded, Part, PartsPlan
from rekindle.show.report import document
from rekindle.show.report import make as write
from traced_steps import PAGE, blocks

CROSSED = """
const crossed = [];
for (const label of document.querySelectorAll('.memory .budget text, .memory .bound text, .memory .peak')) {
  const box = label.getBBox();
  if (box.x < 61 || box.x + box.width > label.ownerSVGElement.clientWidth - 13) crossed.push(label.textContent);
  for (const edge of label.closest('.memory > g').querySelectorAll('.edge')) {
    let [x, y] = [0, 0];
    for (const [, way, first] of edge.getAttribute('d').matchAll(/([MVH])([-0-9.]+)/g)) {
      if (way === 'V') y = Number(first);
      else if (way === 'H' && x < box.x + box.width && Number(first) > box.x && y < box.y + box.height - 2)
        crossed.push(label.textContent);
      if (way !== 'V') x = Number(first);
    }
  }
}
return crossed;
"""  # labels of the memory chart of which some part lies below the curve, or beside the panel


@pytest.mark.parametrize("goal", [{"budget": 0.95}, {"budget": 0.7}, {"budget": 0.5}, {"minimize": "memory"}], ids=str)
def test_no_label_crosses_the_curve(chromium: Any, tmp_path: Path, width: int, goal: dict[str, Any]) -> None:
    rekindle.plan(blocks(8), **goal, solver="every", cache=False).to_html(tmp_path / "report.html", frontier=False)
    page = Page(chromium, tmp_path / "report.html", width)
    assert page.js("return document.querySelectorAll('.memory .bound text').length") == 1
    assert page.js(CROSSED) == []
    page.click("button[title='Zoom in']")
    assert page.js(CROSSED) == []


def test_a_label_wider_than_its_panel_gives_way_to_a_shorter_one(chromium: Any, tmp_path: Path, width: int) -> None:
    plan = replace(rekindle.plan(blocks(8), 0.5, solver="every", cache=False), verified=False)
    (tmp_path / "report.html").write_text(write.page(document.of_plan(plan, [[]])))
    page = Page(chromium, tmp_path / "report.html", width)
    assert "not verified" in page.js("return document.querySelector('.memory .bound').textContent")
    assert page.js(CROSSED) == []


BROKEN = """
const broken = [];
for (const cell of document.querySelectorAll('tbody td')) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/[A-Za-z0-9]+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      const heights = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
      if (heights.size > 1) broken.push(word[0]);
    }
  }
}
return broken;
"""  # words of tables that begin on one line and end on another


def test_names_break_between_their_words(chromium: Any, tmp_path: Path, width: int) -> None:
    graph = blocks(8, model="blocks")
    to = {
        "aten.gelu.default": "aten._safe_softmax.default",
        "aten.addmm.default": "aten._flash_attention_forward.default",
    }
    names = {"blocks.0.fc1": "blocks.0.attention_norm", "blocks.0.act": "blocks.0.attention.key"}
    ops = [replace(o, module=names.get(o.module, o.module), target=to.get(o.target, o.target)) for o in graph.ops]
    rekindle.plan(replace(graph, ops=tuple(ops)), 0.5, solver="every", cache=False).to_html(tmp_path / "x.html")
    page = Page(chromium, tmp_path / "x.html", width)
    said = page.js("return document.getElementById('report').textContent")
    assert "safe_softmax" in said
    assert "flash_attention" in said
    assert page.js(BROKEN) == []
    assert page.js("return document.documentElement.scrollWidth") <= width


def test_the_tile_says_what_is_certified(chromium: Any, tmp_path: Path, width: int) -> None:
    rekindle.plan(blocks(8), 0.6, solver="every", cache=False).to_html(tmp_path / "report.html", frontier=False)
    page = Page(chromium, tmp_path / "report.html", width)
    tiles = page.js("return [...document.querySelectorAll('.tile-figure')].map(t => t.innerText)")
    assert tiles[-1].startswith("no plan this cheap below")
    assert "certified" in tiles[-1]


def test_compiled_and_copied_ways_have_their_pictures(chromium: Any, tmp_path: Path, width: int) -> None:
    """The bar of a way is as wide as the bytes that it keeps on the device and on the host; its frame, as those that the part
    keeps without a plan."""
    compiled = CompiledPart("costly", held_bytes=30 * PAGE, min_cut_bytes=40 * PAGE, extra_seconds=1e-3)
    parts = (Part("a", compiled=compiled, offloaded=Offloaded(20 * PAGE)), Part("b", compiled=compiled))
    plan = PartsPlan(
        "Net", parts, 400 * PAGE, None, 30 * PAGE, 900 * PAGE, 0.1, 0.05, Budget(500 * PAGE), "seconds", "", 1.0,
        captured=TraceOptions(compile=CompileOptions()),
    )  # fmt: skip
    plan.to_html(tmp_path / "report.html")
    page = Page(chromium, tmp_path / "report.html", width)
    wide = lambda row: page.js(  # noqa: E731
        "return [...document.querySelectorAll(`tbody tr:nth-child(${arguments[0]}) .way rect`)]"
        ".map(r => [r.getAttribute('class'), r.getBoundingClientRect().width])",
        row,
    )
    (_, saved), (_, away), (_, gone) = copied = wide(1)
    assert [x[0] for x in copied] == ["fill saved", "fill away", "gone"]
    assert (saved / gone, away / gone) == pytest.approx((0.25, 0.5), abs=0.05)
    assert [x[0] for x in wide(2)] == ["fill saved", "gone"]
    said = page.js("return document.getElementById('report').innerText")
    assert "those of them that cost most to recompute" in said
    assert "on the host alone" in said
    assert page.js("const s = document.querySelector('.scroll'); return s.scrollWidth - s.clientWidth") == 0
    assert page.read_logs()[0] == []
