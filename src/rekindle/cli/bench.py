"""`rekindle bench`: measures a suite of models under several methods, one row each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..errors import UsageError
from ..model.graph import COSTS
from ..saying.shares import percent
from ..show import text
from ..torch.costs import devices
from .answer import Answer, err_console
from .options import Json, among, check_writable, target_name

if TYPE_CHECKING:
    from ..bench.row import Row

Suite = Annotated[str, typer.Option(metavar="NAME", help="seeds (the published table) or smoke; more in a checkout.")]
Names = Annotated[str | None, typer.Option(metavar="NAMES", help="Only these, separated by commas.")]
Methods = Annotated[
    str | None,
    typer.Option(metavar="NAMES",
                 help="Only these, separated by commas: plain, a solver's name (least memory), auto@8% (least "
                      "memory within 8 % extra cost), auto=0.5 (least cost within half of the plain activations), auto=ogc "
                      "(within the published solver's memory), auto@8%~close (gradients may be added up in another order). "
                      "`python benchmarks/bench.py` in a checkout knows the comparators too."),
]  # fmt: skip
Rows = Annotated[Path | None, typer.Option(metavar="FILE", help="JSON-lines file to append each row to.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure rows again that --out already holds.")]
Jobs = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes, each measuring one model at a time; up to two by default."),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="DEVICE", callback=target_name, autocompletion=among(devices.names),
        help="Take modelled seconds from the roofline of this device: {devices}.",
    ),
]  # fmt: skip
CostOf = Annotated[
    str | None,
    typer.Option(
        "--cost",
        metavar="UNIT",
        help="seconds, flops or unit. Default: the suite's own.",
        autocompletion=among(COSTS),
    ),
]


def bench(
    suite: Suite = "seeds", models: Names = None, methods: Methods = None, out: Rows = None, fresh: Fresh = False,
    jobs: Jobs = None, target: Target = "rtx2080ti", cost: CostOf = None, json: Json = False,
) -> Answer:  # fmt: skip
    """Measure a suite. --out appends each row to a JSON-lines file at once; a later run goes on where the file ends."""
    check_writable(out)
    if fresh and out is None:
        raise UsageError("--fresh needs --out: it measures the rows of that file again")
    from ..bench import run_suite, tasks
    from ..bench.files import RowFile
    from ..bench.pool import interrupted
    from ..bench.row import key

    file = None if out is None else RowFile(out, _notice)
    only, by = _names(models), _names(methods)
    everything = tasks(suite, only, by, target=target, cost=cost)
    held = {key(r): r for r in file.rows if not interrupted(r)} if file is not None and not fresh else {}
    left = tasks(suite, only, by, held, target, cost)
    total = sum(len(t.methods) for t in everything)
    count = sum(len(t.methods) for t in left)
    if count < total:
        wanted = {(t.suite, t.model, m, t.cost, t.target) for t in everything for m in t.methods}
        rows = [r for k, r in held.items() if k in wanted]
        _notice(f"{total - count} of {total} rows are in {out} already; --fresh measures them again")
    else:
        rows = []
    with _progress(count) as (tell, done):
        for row in run_suite(suite, only, by, tell, done=held, target=target, cost=cost, jobs=jobs):
            rows.append(row)
            if file is not None:
                file.append(row)
            done(row)
    if fresh and file is not None:
        file.tidy()
    document: dict[str, Any] = {"suite": suite, "rows": rows}
    return Answer(document, lambda: [text.bench_table(rows, f"suite {suite}")])


def _names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",") if name.strip()]


def _notice(line: str) -> None:
    print(line, file=sys.stderr)


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[Row], None]]]:
    """Shows the current step and a bar of rows done and left; prints one line per row if stderr is not a terminal."""
    console = err_console()
    if not console.is_terminal:
        rows = 0

        def line(row: Row) -> None:
            nonlocal rows
            rows += 1
            _notice(f"{rows}/{total} {row['model']} {row['method']}: {_summary(row)}")

        yield lambda _: None, line
        return
    columns = (
        BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)

        def advance(row: Row) -> None:
            bar.advance(task)

        yield lambda line: bar.update(task, description=line), advance


def _summary(row: Row) -> str:
    if row["status"] != "ok":
        return f"failed, {row['note']}"
    extra = "" if row.get("flops_overhead") is None else f", {percent(row['flops_overhead'])} FLOPs"
    return f"{row['peak_mb']:,.0f} MB{extra}"
