"""Searches without a time limit share an allowance of processor time: it ends them with a plan and one line."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rekindle
from graphs_by_hand import unrolled
from rekindle import allowance
from rekindle.allowance import AllowanceSettings
from rekindle.model.judge import simulate

ENDED = "the search ended after"


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call's allowance is over before its searches begin."""
    monkeypatch.setattr(allowance, "SETTINGS", AllowanceSettings(steps=0, least_s=0.0, most_s=0.0))


@pytest.mark.parametrize("goal", [{"minimize": "memory"}, {"max_overhead": 0.2}, {"budget": 0.9}], ids=str)
def test_a_search_that_it_ends_gives_a_plan_that_keeps_its_goal(
    spent: None, goal: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    graph = unrolled(24)
    plan = rekindle.plan(graph, **goal)
    assert capsys.readouterr().err.count(ENDED) == 1
    assert simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes
    assert plan.overhead <= goal.get("max_overhead", float("inf")) + 1e-9
    limit = goal.get("budget", 1.0) * (plan.baseline_peak_bytes - graph.resident_bytes)
    assert plan.activation_peak_bytes <= limit


def test_the_curve_of_a_frontier_ends_too(spent: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert rekindle.frontier(unrolled(24))
    assert capsys.readouterr().err.count(ENDED) == 1


@pytest.mark.parametrize("more", [{"time_limit": 5.0}, {"effort": "thorough"}], ids=str)
def test_who_asks_for_more_time_has_no_allowance(
    spent: None, more: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rekindle.plan(unrolled(4), minimize="memory", **more)
    assert ENDED not in capsys.readouterr().err


def test_parts_share_what_is_left() -> None:
    with allowance.shared(False):
        whole = allowance.of_step(0.0)
        with allowance.part(0.25):
            part = allowance.of_step(0.0)
            assert 0 < part.left <= 0.25 * whole.seconds
            with allowance.part(0.5):
                assert allowance.of_step(0.0).left <= 0.125 * whole.seconds
            assert allowance.of_step(0.0) is part
        assert allowance.of_step(0.0) is whole
        assert whole.cut_after is None


def test_only_this_processs_work_counts() -> None:
    with allowance.shared(False):
        own = allowance.of_step(0.0)
        before = own.left
        time.sleep(0.2)
        assert before - own.left < 0.1


def test_the_line_says_the_seconds_after_which_the_search_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(allowance, "SETTINGS", AllowanceSettings(steps=0, least_s=0.01))
    with allowance.shared(None):
        own = allowance.of_step(0.0)
        time.sleep(1.1)  # of other processes' work
        while own.left > 0:
            pass
        time.sleep(1.0)  # all that follows the search
    assert f"{ENDED} 1 s (0 s of processor time)" in capsys.readouterr().err


def test_a_longer_step_may_take_longer() -> None:
    s = allowance.SETTINGS
    for seconds, wanted in ((0.0, s.least_s), (0.03, 30.0), (10.0, s.most_s)):
        with allowance.shared(False):
            assert allowance.of_step(seconds).seconds == pytest.approx(wanted)
