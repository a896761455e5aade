"""Rows of benchmark files: the newest of each is kept, and a damaged file is a clear error."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from rekindle.errors import FormatError

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from page.rows import read

from test_benchmark_page import PLAIN, page, row


def test_the_newest_row_of_a_key_is_kept(tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    first = [row("auto", 500.0, date="2026-11-20"), row("feng", 700.0), PLAIN]
    second = [row("auto", 900.0, date="2026-11-19"), row("feng", 600.0), row("feng", 650.0, cost="seconds")]
    for path, rows in ((old, first), (new, second)):
        path.write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    found = read([old, new])
    assert [(r["method"], r["cost"], r["peak_mb"]) for r in found] == [
        ("auto", "flops", 500.0), ("feng", "flops", 600.0), ("plain", "flops", 1000.0), ("feng", "seconds", 650.0),
    ]  # fmt: skip


def test_rows_for_different_devices_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [PLAIN | {"target": t} for t in ("rtx2080ti", "h200", "h200")]}))
    assert [r["target"] for r in read([path])] == ["rtx2080ti", "h200"]


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PLAIN) + '\n{"suite": "se')
    told: list[str] = []
    assert read([path], told.append) == [PLAIN]
    assert "cut off" in told[0]


def test_a_document_with_a_head_lends_it_to_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"date": "2026-11-21", "hardware": "a machine", "command": "run it", "rows": [PLAIN]}))
    (found,) = read([path])
    assert (found["date"], found["hardware"], found["command"]) == ("2026-11-21", "a machine", "run it")
    assert found["peak_mb"] == 1000.0
    text, _ = page([found], "x")
    assert "a machine" in text
    assert "run it" in text


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", json.dumps(PLAIN) + '\n{"suite": "se\n', "line 2 is no row"),
        ("a.jsonl", "[1]", "line 1 is no row"),
        ("a.jsonl", json.dumps(PLAIN | {"model": None}), "line 1 is no row of a benchmark: its 'model' is None"),
        ("a.jsonl", json.dumps(PLAIN | {"peak_mb": "big"}), "'peak_mb' is 'big'"),
        ("a.jsonl", json.dumps(PLAIN | {"peak_mb": None}), "above 0"),
        ("a.jsonl", json.dumps(PLAIN | {"flops_overhead": math.nan}), "'flops_overhead' is nan"),
        ("a.jsonl", json.dumps(PLAIN | {"status": "fine"}), "'status' is 'fine'"),
        ("a.jsonl", json.dumps(PLAIN | {"date": 3}), "'date' is 3"),
        ("a.json", "{}", 'no list "rows"'),
        ("a.json", json.dumps({"rows": [PLAIN, 1]}), "row 1 is no row"),
        ("a.json", "{", "damaged"),
    ],
)
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FormatError, match=re.escape(says)) as e:
        read([path])
    assert str(path) in str(e.value)


def test_a_missing_or_binary_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read([tmp_path / "none.jsonl"])
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="line 1 is no row"):
        read([tmp_path / "b.jsonl"])
