"""Runs the tests marked gpu; one record per test."""

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
    """Run the tests on the device."""
    report = work / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += map(str, marked(root))
    passed(work / KERNELS)
    with turn(work / GPU):
        done = subprocess.run(command, cwd=root, env=os.environ | {"REKINDLE_GPU_TESTS_ON": kind})
    if not report.exists():
        raise RuntimeError(f"pytest ended with code {done.returncode} and wrote no report")
    for row in outcomes(report):
        emit(row)


def marked(root: Path) -> list[Path]:
    """The test files that hold tests marked gpu."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [p for p in files if "mark.gpu" in p.read_text(encoding="utf-8")]


def outcomes(report: Path) -> list[dict[str, Any]]:
    """The records of a JUnit report."""
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        told = next((child for child in case if child.tag in WORDS), None)
        note = "" if told is None else " ".join((told.get("message") or told.text or "").split())[:400]
        status = "ok" if told is None else WORDS[told.tag]
        seconds = float(case.get("time") or 0.0)
        rows.append({"part": "tests", "name": case.get("name"), "status": status, "seconds": seconds, "note": note})
    return rows
