"""Runs the tests on each combination of Python and PyTorch, and prints a table: `make test-matrix`.

Each combination has a virtual environment of its own, `.venv-2.11.0-py3.12`, which `make setup` builds where it is missing.
With a CUDA build of PyTorch the tests in `tests/matrix` run too: on the GPU, or on a device that runs no kernels
(`cuda_without_a_device.py`). Logs go to out/matrix/.

    python tools/run_matrix.py                                # all combinations, all tests
    python tools/run_matrix.py 2.11.0-py3.12                  # one combination
    python tools/run_matrix.py --tests tests/torch/run/test_parity.py

Exits with 1 if a test fails or an environment cannot be built. A Python that is not installed is a row of the table, and no
failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "matrix"
DEVICES = ("h100", "a100")  # they choose other kernels for attention
SKIPPED = 77  # see cuda_without_a_device.py


@dataclass(frozen=True)
class Combination:
    """Versions that are tested together. torchvision : the release that belongs to this torch."""

    python: str
    torch: str
    torchvision: str

    @property
    def name(self) -> str:
        return f"{self.torch}-py{self.python}"

    @property
    def venv(self) -> Path:
        return ROOT / f".venv-{self.name}"


COMBINATIONS = (Combination("3.11", "2.13.0", "0.28.0"), Combination("3.12", "2.11.0", "0.26.0"))


@dataclass(frozen=True)
class Result:
    """One row of the table. ok : nothing failed."""

    name: str
    what: str
    outcome: str
    seconds: float
    ok: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(c.name for c in COMBINATIONS))
    parser.add_argument("--tests", nargs="*", default=[], help="files of tests; without it, those of `make test`")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {c.name for c in COMBINATIONS}:
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(c.name for c in COMBINATIONS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    rows: list[Result] = []
    for c in COMBINATIONS:
        if not asked.names or c.name in asked.names:
            rows += tested(c, asked.tests)
    print(table(rows))
    return 0 if all(r.ok for r in rows) else 1


def tested(c: Combination, tests: list[str]) -> list[Result]:
    """The rows of one combination."""
    python = found_python(c.python)
    if python is None:
        return [Result(c.name, "setup", f"Python {c.python} is not installed", 0.0, True)]
    begin = time.monotonic()
    torch, vision = f"TORCH=torch=={c.torch}", f"TORCHVISION=torchvision=={c.torchvision}"
    if logged(f"{c.name}-setup", ["make", f"VENV={c.venv.name}", f"PYTHON={python}", torch, vision, "setup"]) != 0:
        log = OUT / f"{c.name}-setup.log"
        return [Result(c.name, "setup", f"failed: see {log.relative_to(ROOT)}", time.monotonic() - begin, False)]
    own = str(c.venv / "bin" / "python")
    rows = [run(c, "tests", [own, "-m", "pytest", "-n", "2", "--dist", "loadfile", *tests])]
    for device in DEVICES:
        under = [own, "tools/cuda_without_a_device.py", "-m", "pytest", "tests/matrix"]
        rows.append(run(c, f"CUDA, {device}", under, {"REKINDLE_NO_DEVICE": device}))
    return rows


def run(c: Combination, what: str, command: list[str], environment: dict[str, str] | None = None) -> Result:
    """Run pytest by this command; its row."""
    name = f"{c.name}-{what.replace(', ', '-')}"
    report, begin = OUT / f"{name}.xml", time.monotonic()
    report.unlink(missing_ok=True)
    code = logged(name, [*command, f"--junitxml={report}"], environment)
    seconds = time.monotonic() - begin
    if code == SKIPPED:
        reason = (OUT / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1]
        return Result(c.name, what, reason, seconds, True)
    return Result(c.name, what, counts(report) if report.exists() else f"ended with {code}", seconds, code == 0)


def logged(name: str, command: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a command whose output goes to a log; its exit code."""
    print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
    with (OUT / f"{name}.log").open("w") as log:
        return subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
        ).returncode


def counts(report: Path) -> str:
    """How many tests passed, failed and were skipped, from a report in JUnit's format."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    numbers = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for s in suites:
        for k in numbers:
            numbers[k] += int(s.get(k, 0))
    bad = numbers["failures"] + numbers["errors"]
    return f"{numbers['tests'] - bad - numbers['skipped']} passed, {bad} failed, {numbers['skipped']} skipped"


def found_python(version: str) -> str | None:
    """A Python of this version: on the path, or of pyenv."""
    places = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for place in places:
        if place is not None and subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
            return place
    return None


def table(rows: list[Result]) -> str:
    """The rows as a Markdown table."""
    head = ["| torch and Python | what ran | outcome | minutes |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {r.name} | {r.what} | {r.outcome} | {r.seconds / 60:.1f} |" for r in rows)])


if __name__ == "__main__":
    sys.exit(main())
