"""Measures on a GPU, in under ten minutes: parity, peaks and times against predictions, and the largest batch.

python benchmarks/gpu.py                        # on the GPU; writes benchmarks/results/DATE-gpu-DEVICE.json and .md
python benchmarks/gpu.py --device cpu --small   # runs all of it on the CPU with tiny models; writes out/gpu/

Parts: the tests marked gpu; one step each of the published suite, GPT-2 and ViT-B/16, plain, planned and checkpointed by hand;
the largest batch of ResNet-50, GPT-2 medium and a 3-D U-Net under memory caps. Each job is a process of its own: one that
fails leaves a row that says why. Rows are written as they come, the report after every job.

Exit code: 1 if anything failed, else 3 if jobs were left out for lack of time, else 0. The end of the output and the report
name the jobs that were left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

START = time.monotonic()  # the time that it takes to import torch counts too
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # without an installation too

from gpu import driver, jobs  # noqa: E402
from gpu.rows import Row, appended, failed, left_out, newest  # noqa: E402

from rekindle.model.files import write_text  # noqa: E402

try:
    from gpu.report import markdown
except ImportError:  # the Python of a GPU machine may lack pandas
    markdown = None  # type: ignore[assignment]
    print("pandas is not installed: the results are written as JSON, and no report", file=sys.stderr)

HERE = Path(__file__).parent
OUT = HERE.parent / "out" / "gpu"


def main() -> None:
    given = arguments().parse_args()
    if given.job:
        jobs.run(given.job, given.device, given.small, given.work, given.solve_seconds)
        return
    work = (given.work or OUT / "work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    for old in (*work.glob("*.jsonl"), *work.glob("*.log"), *work.glob("tests.xml")):
        old.unlink()
    out = given.out or (HERE / "results" if given.device == "cuda" and not given.small else OUT)
    out.mkdir(parents=True, exist_ok=True)
    report = Report(work, out)
    deadline = START + 60 * given.minutes
    solve_s = given.solve_seconds or (2.0 if given.small else 15.0)
    run = jobs.RunOptions(given.device, given.small, work, given.minutes, solve_s)
    driver.run([jobs.facts(run)], work, deadline, 1, report.take)
    device_bytes = next((r["device_bytes"] for r in report.rows if r.get("device_bytes")), None)
    todo = jobs.jobs(replace(run, device_bytes=device_bytes))
    if given.only:
        todo = [j for j in todo if any(j.name.startswith(o) for o in given.only)]
    driver.run(todo, work, deadline, given.workers or max(1, min(8, (os.cpu_count() or 1) // 2)), report.take)
    report.write()
    print(f"{report.path('md' if markdown else 'json')}: {time.monotonic() - START:.0f} s")
    sys.exit(ended(newest(report.rows)))


def ended(rows: list[Row]) -> int:
    """The exit code; names the jobs that were left out on stderr."""
    out = left_out(rows)
    if out:
        print(f"LEFT OUT, {len(out)} jobs for which no time was left (more with --minutes):", file=sys.stderr)
    for row in out:
        print(f"  {row['name']}: {row['note']}", file=sys.stderr)
    return 1 if failed(rows) else 3 if out else 0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--small", action="store_true", help="tiny models and caps")
    p.add_argument("--minutes", type=float, default=8.8, help="after which what is left is reported as left out")
    p.add_argument(
        "--only", type=lambda s: s.split(","), help="jobs whose names begin so: kernels, tests, steps:gpt2, largest, …"
    )
    p.add_argument("--out", type=Path, help="folder of the results")
    p.add_argument("--work", type=Path, help="folder of rows and logs while it runs; older ones there are removed")
    p.add_argument("--workers", type=int, help="jobs beside each other; only one of them uses the device at a time")
    p.add_argument("--solve-seconds", type=float, help="time limit of every plan: 15, or 2 with --small")
    p.add_argument("--job", help=argparse.SUPPRESS)
    return p


class Report:
    """All rows and records so far, and the files that show them."""

    def __init__(self, work: Path, out: Path):
        self.work, self.out, self.rows = work, out, list[Row]()
        self.date = datetime.date.today().isoformat()

    def take(self, job: jobs.Job, rows: list[Row]) -> None:
        """Take the rows of a job that ended."""
        for row in rows:
            appended(self.work / "rows.jsonl", row)
        self.rows += rows
        self.write()
        ended = rows[-1]
        print(
            f"{time.monotonic() - START:6.0f} s  {job.name}: {ended['status']} {ended['note']}",
            file=sys.stderr,
            flush=True,
        )

    def write(self) -> None:
        """Write both files with all results so far."""
        command = " ".join(["python", *sys.argv])
        head = {"suite": "gpu", "date": self.date, "command": command, "seconds": time.monotonic() - START}
        found = newest(self.rows)
        rows, records = ([r for r in found if ("suite" in r) == is_row] for is_row in (True, False))
        document = head | {"rows": rows, "records": records}
        write_text(self.path("json"), json.dumps(document, indent=1) + "\n")
        if markdown is not None:
            write_text(self.path("md"), markdown(head, self.rows))

    def path(self, ending: str) -> Path:
        """DATE-gpu-DEVICE.ending."""
        named = (str(r["device"]) for r in self.rows if r.get("part") == "facts" and "device" in r)
        device = re.sub(r"[^a-z0-9]+", "-", next(named, "unknown").lower()).strip("-")
        return self.out / f"{self.date}-gpu-{device}.{ending}"


if __name__ == "__main__":
    main()
