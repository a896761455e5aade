"""The face of a plan: its reports, snapshots and explanations, each imported when it is first used."""

from __future__ import annotations

from html import escape
from typing import Any

from ..model.any_plan import FACES
from ..printed import printable


def _write_report(*arguments: Any) -> None:
    from .report.make import write_report

    write_report(*arguments)


def _write_snapshot(*arguments: Any) -> None:
    from .snapshot import write_snapshot

    write_snapshot(*arguments)


def _explain(plan: Any) -> Any:
    from ..explain import explain

    return explain(plan)


def _html(plan: Any) -> str:
    """HTML of a plan, which a notebook shows: its sentence and its figures; of a whole step, its memory over time too."""
    from .timeline import memory_timeline

    *rows, sentence = printable(str(plan), keep="\n").split("\n")
    table = "\n".join(rows)
    figures = f"<details><summary>Figures</summary><pre>{escape(table)}</pre></details>"
    picture = ""
    if plan.kind == "step":
        picture = memory_timeline(
            plan.graph, plan.schedule, budget=plan.limit, cost=plan.cost, target=plan.trace_options.target
        )
    return f"<div><p><b>{escape(sentence)}</b></p>{figures}{picture}</div>"


FACES.update(report=_write_report, snapshot=_write_snapshot, explain=_explain, html=_html)
