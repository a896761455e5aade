"""Rows on disk, and two files compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import compare_rows
import pytest
from compare_rows import regressions

from marks import sweep
from rekindle.bench.files import RowFile, read_rows
from rekindle.bench.pool import run_in_processes
from rekindle.bench.row import Task
from rekindle.cli.app import main
from rekindle.errors import FormatError, UsageError

ROW: dict[str, Any] = {
    "suite": "smoke", "model": "cnn", "method": "auto@8%", "cost": "flops", "target": "rtx2080ti", "peak_mb": 100.0,
    "flops_overhead": 0.05, "seconds_overhead": 0.06, "overhead": 0.05, "status": "ok", "plan_status": "optimal",
}  # fmt: skip


def write(path: Path, *rows: dict[str, Any], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + tail)
    return path


def test_the_newest_row_of_a_key_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROW, ROW | {"method": "plain"}, ROW | {"peak_mb": 90.0})
    assert [(r["method"], r["peak_mb"]) for r in read_rows(path)] == [("plain", 100.0), ("auto@8%", 90.0)]
    file = RowFile(path, pytest.fail)
    file.append(ROW | {"peak_mb": 80.0})
    assert [r["peak_mb"] for r in read_rows(path)] == [100.0, 80.0]
    assert len(path.read_text().splitlines()) == 4
    file.tidy()
    assert [json.loads(line)["peak_mb"] for line in path.read_text().splitlines()] == [100.0, 80.0]


@pytest.mark.parametrize("tail", ['{"suite": "smo', '{"suite": "smoke", "model": "c\xe9'])
def test_a_last_line_that_was_cut_off_is_dropped(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path / "rows.jsonl", ROW, tail=tail)
    told: list[str] = []
    assert len(read_rows(path, told.append)) == 1
    file = RowFile(path, told.append)
    assert len(told) == 2
    assert "cut off" in told[0]
    file.append(ROW | {"method": "none"})
    assert [r["method"] for r in read_rows(path)] == ["auto@8%", "none"]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", tail=json.dumps(ROW))
    file = RowFile(path, pytest.fail)
    file.append(ROW | {"method": "none"})
    assert [r["method"] for r in read_rows(path)] == ["auto@8%", "none"]


@pytest.mark.parametrize("bad", ['{"suite"', "[1]", '{"suite": "smoke"}', json.dumps(ROW | {"peak_mb": "much"})])
def test_other_damage_is_refused_and_left(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(bad + "\n" + json.dumps(ROW) + "\n")
    before = path.read_bytes()
    with pytest.raises(FormatError, match="line 1"):
        RowFile(path, pytest.fail)
    assert path.read_bytes() == before


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    "change",
    [
        {"peak_mb": math.nan}, {"flops_overhead": math.inf}, {"bound_mb": -math.inf}, {"peak_mb": 10**400},
        {"status": "fine"}, {"status": None}, {"peak_mb": None}, {"peak_mb": 0}, {"peak_mb": -1.0}, {"parity": "yes"},
        {"target": ["rtx2080ti"]}, {"slices": "two"}, {"sums": "head.weight"}, {"sums": [1]},
    ],
)  # fmt: skip
def test_a_row_that_says_nothing_is_refused(tmp_path: Path, change: dict[str, Any], end: str) -> None:
    old = write(tmp_path / "old.jsonl", ROW)
    bad = write(tmp_path / "bad.jsonl", ROW, tail=json.dumps(ROW | change) + end)
    with pytest.raises(FormatError, match=r"bad\.jsonl, line 2 .* and must be "):
        read_rows(bad)
    assert compare_rows.main([str(old), str(bad)]) == 1


def test_a_file_that_is_no_rows_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "notes.txt", tail="not mine")
    with pytest.raises(FormatError, match="line 1"):
        RowFile(path, pytest.fail)
    assert path.read_text() == "not mine"


@pytest.mark.parametrize(
    ("change", "field", "worse"),
    [
        ({"peak_mb": 100.9}, "peak_mb", False),
        ({"peak_mb": 101.1}, "peak_mb", True),
        ({"peak_mb": 50.0}, "peak_mb", False),
        ({"flops_overhead": 0.055}, "flops_overhead", False),
        ({"flops_overhead": 0.061}, "flops_overhead", True),
        ({"seconds_overhead": 0.08}, "seconds_overhead", True),
        ({"overhead": 0.08}, "overhead", True),
        ({"plan_status": "feasible"}, "plan_status", True),
        ({"status": "failed", "peak_mb": None}, "status", True),
    ],
)
def test_what_is_a_regression(change: dict[str, Any], field: str, worse: bool) -> None:
    (found,) = regressions([ROW], [ROW | change])
    assert (found.field, found.worse) == (field, worse)
    back = [c.worse for c in regressions([ROW | change], [ROW])]
    assert back == [] or not worse or back == [False]
    assert not regressions([ROW], [ROW])


FIGURES = ["peak_mb", "flops_overhead", "seconds_overhead", "overhead", "plan_status", "parity"]


@pytest.mark.parametrize("field", FIGURES)
def test_what_is_no_longer_told_is_a_regression(field: str) -> None:
    full = ROW | {"parity": True, "overhead": 0.0}
    (found,) = regressions([full], [full | {field: None}])
    assert (found.field, found.old, found.new, found.worse) == (field, full[field], None, True)
    assert not regressions([full | {field: None}], [full])
    failed = full | {"status": "failed", field: None}
    assert [c.field for c in regressions([full], [failed])] == ["status"]  # which explains it


def test_parity_that_is_lost_is_a_regression() -> None:
    (found,) = regressions([ROW | {"parity": True}], [ROW | {"parity": False}])
    assert (found.field, found.worse) == ("parity", True)


def test_a_row_that_is_missing_is_a_regression_but_of_a_subset() -> None:
    other = ROW | {"model": "other"}
    (found,) = regressions([ROW, other], [ROW])
    assert (found.to_json()["model"], found.field, found.new, found.worse) == ("other", "row", "missing", True)
    assert not regressions([ROW, other], [ROW], subset=True)
    assert not regressions([ROW], [ROW, other])  # a new one is none
    for subset in (False, True):
        with pytest.raises(UsageError, match="nothing to compare"):
            regressions([ROW], [other], subset)


def test_compare_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.jsonl", ROW), write(tmp_path / "new.jsonl", ROW | {"peak_mb": 102.0})
    assert compare_rows.main([str(old), str(old)]) == 0
    assert compare_rows.main([str(new), str(old)]) == 0
    assert compare_rows.main([str(old), str(new)]) == 1
    assert "REGRESSION" in capsys.readouterr().out
    assert compare_rows.main([str(old), str(new), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["regressions"], document["compared"]) == (1, 1)
    assert document["changes"][0]["field"] == "peak_mb"
    with pytest.raises(SystemExit, match="2"):
        compare_rows.main([str(old)])
    assert compare_rows.main([str(old), str(tmp_path / "no.jsonl")]) == 1


def test_compare_tells_rows_that_only_one_side_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.jsonl", ROW)
    two = write(tmp_path / "two.jsonl", ROW, ROW | {"method": "plain"})
    other = write(tmp_path / "other.jsonl", ROW | {"model": "other"})
    assert compare_rows.main([str(two), str(one)]) == 1
    assert "missing" in capsys.readouterr().out
    assert compare_rows.main([str(two), str(one), "--subset"]) == 0
    assert compare_rows.main([str(one), str(two)]) == 0
    assert f"1 only in {two}" in " ".join(capsys.readouterr().out.split())
    assert compare_rows.main([str(one), str(other), "--subset"]) == 2
    assert "nothing to compare" in capsys.readouterr().err


@sweep
def test_bench_goes_on_where_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "rows.jsonl")
    command = ["bench", "--suite", "smoke", "--models", "cnn", "--out", out, "--json", "--methods"]
    assert main([*command, "plain"]) == 0
    first = capsys.readouterr()
    assert "1/1 cnn plain" in first.err
    assert [r["method"] for r in json.loads(first.out)["rows"]] == ["plain"]
    assert main([*command, "plain,none"]) == 0
    second = capsys.readouterr()
    assert "1 of 2 rows are in" in second.err
    assert [r["method"] for r in json.loads(second.out)["rows"]] == ["plain", "none"]
    assert json.loads(second.out)["rows"][0] == json.loads(first.out)["rows"][0]
    assert main([*command, "plain", "--fresh"]) == 0
    assert [r["method"] for r in read_rows(Path(out))] == ["none", "plain"]
    assert len(Path(out).read_text().splitlines()) == 2


@sweep
def test_a_row_whose_process_ended_early_is_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Task("smoke", "nothing of that name", ("plain",), "rtx2080ti", "flops")
    (lost,) = run_in_processes([task], 1, pytest.fail)
    failed = lost | {"model": "cnn", "method": "none", "note": "it failed"}
    path = write(tmp_path / "rows.jsonl", lost | {"model": "cnn"}, failed)
    command = ["bench", "--suite", "smoke", "--models", "cnn", "--methods", "plain,none", "--out", str(path)]
    assert main(command) == 0
    assert "1 of 2 rows are in" in capsys.readouterr().err  # what failed by itself is a result
    found = {r["method"]: r for r in read_rows(path)}
    assert found["plain"]["status"] == "ok"
    assert found["none"] == failed


@pytest.mark.parametrize(
    "bad",
    [
        ["--suite", "no"],
        ["--fresh"],
        ["--suite", "smoke", "--methods", "no"],
        ["--target", "abacus"],
        ["--jobs", "0"],
        ["--cost", "gold"],
    ],
)
def test_usage_errors_exit_2(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *bad]) == 2
    assert "error:" in capsys.readouterr().err


def test_a_progress_bar_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from rekindle.cli import bench as command

    text = StringIO()
    monkeypatch.setattr(command, "err_console", lambda: Console(file=text, force_terminal=True, width=120))
    with command._progress(3) as (tell, done):
        tell("cnn: plain step")
        done(ROW)
    assert "1/3" in text.getvalue()
    assert "cnn: plain step" in text.getvalue()
