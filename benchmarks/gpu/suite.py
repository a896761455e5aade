"""The tests marked gpu, one row per test."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.turns import GPU, KERNELS, passed, turn

WORDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def run(root: Path, kind: str, work: Path, emit: Callable[[dict[str, Any]], None]) -> None:
    """Run them on the device."""
    report = work / "tests.xml"
    marked = [str(p) for p in sorted((root / "tests").glob("test_*.py")) if "mark.gpu" in p.read_text(encoding="utf-8")]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}", *marked]
    passed(work / KERNELS)
    with turn(work / GPU):
        done = subprocess.run(command, cwd=root, env=os.environ | {"REKINDLE_GPU_TESTS_ON": kind})
    if not report.exists():
        raise RuntimeError(f"pytest ended with code {done.returncode} and wrote no report")
    for row in outcomes(report):
        emit(row)


def outcomes(report: Path) -> list[dict[str, Any]]:
    """Rows of a JUnit report."""
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        told = next((child for child in case if child.tag in WORDS), None)
        note = "" if told is None else " ".join((told.get("message") or told.text or "").split())[:400]
        status = "ok" if told is None else WORDS[told.tag]
        seconds = float(case.get("time") or 0.0)
        rows.append({"part": "tests", "name": case.get("name"), "status": status, "seconds": seconds, "note": note})
    return rows
