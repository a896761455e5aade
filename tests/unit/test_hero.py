"""The README's pictures: all measured steps; labels that neither touch nor leave the picture, and only measured points."""

from __future__ import annotations

import itertools

import pytest

from rekindle.errors import UsageError

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

import readme_picture
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from page.hero import LABELS, LOOKS, MEASURE, OURS, PLAIN, Look, hero
from page.measured_steps import KINDS, measured
from page.rows import table

from test_benchmark_page import PLAIN as PLAIN_ROW


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> Look:
    return LOOKS[request.param]


@pytest.fixture
def picture(look: Look) -> Figure:
    return hero(readme_picture.rows(), look)


def test_four_methods_are_labelled_and_labels_do_not_collide(picture: Figure) -> None:
    (axes,) = picture.axes
    labels = {t.get_text(): t for t in axes.texts}
    named = {OURS, *(words.name for words in LABELS.values())}
    assert len(named) == 4
    assert named | {PLAIN.name} <= set(labels)
    assert len(labels) == len(named) + 2  # the plain step, and one word on what is grey
    renderer = FigureCanvasAgg(picture).get_renderer()
    whole = picture.bbox
    boxes = {name: t.get_window_extent(renderer) for name, t in labels.items()}
    for name, box in boxes.items():
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1, name
    for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
        assert not one.overlaps(other), (a, b)
    marked = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    marks = [axes.transData.transform(p) for line in marked for p in line.get_xydata()]
    assert len(marks) > 20
    for name, box in boxes.items():
        assert not [m for m in marks if box.contains(*m)], name


def test_every_point_is_a_row(picture: Figure) -> None:
    rows = readme_picture.rows()
    known = {(round(g, 6), round(x, 6)) for g, x in zip(rows["peak_mb"] / 1024, rows[f"extra_{MEASURE}"], strict=True)}
    drawn = {(round(float(g), 6), round(float(x), 6)) for line in picture.axes[0].lines for g, x in line.get_xydata()}
    assert drawn <= known


def test_memory_lies_along_x_and_time_along_y(picture: Figure) -> None:
    (axes,) = picture.axes
    assert "GiB" in axes.get_xlabel()
    assert "time" in axes.get_ylabel()


def test_rows_without_auto_make_no_picture() -> None:
    with pytest.raises(UsageError, match="a row of auto"):
        hero(table([PLAIN_ROW | {"batch": 1}]), LOOKS["light"])


def test_measured_steps_are_drawn_once_each(look: Look) -> None:
    panels = readme_picture.panels()
    picture = measured(panels, look)
    for axes, (title, points) in zip(picture.axes, panels.items(), strict=True):
        assert axes.get_title("left") == title
        drawn = [tuple(map(float, p)) for line in axes.lines for p in line.get_xydata()]
        assert sorted(drawn) == sorted((p.peak, p.seconds) for p in points)
        assert (1.0, 1.0) in drawn
        for x, y in drawn:
            assert axes.get_xlim()[0] < x < axes.get_xlim()[1]
            assert axes.get_ylim()[0] < y < axes.get_ylim()[1]
    (legend,) = picture.legends
    assert [t.get_text() for t in legend.texts] == [k.name for k in KINDS]
