"""The face of a plan: its reports, snapshots and explanations, each imported when it is first used."""

from __future__ import annotations

from html import escape
from typing import Any

from ..model.plan import FACES, Plan
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


def _plan_html(plan: Plan) -> str:
    """HTML of a plan, which a notebook shows: its figures, its sentence, and its memory over time."""
    from .timeline import memory_timeline

    picture = memory_timeline(
        plan.graph, plan.schedule, budget=plan.limit, cost=plan.cost, target=plan.trace_options.target
    )
    return _in_html(str(plan), picture)


def _in_html(printed_plan: str, picture: str = "") -> str:
    """The lines of a printed plan: its table as it is, and its sentence in front."""
    *rows, sentence = printable(printed_plan, keep="\n").split("\n")
    figures = f"<details><summary>Figures</summary><pre>{escape(chr(10).join(rows))}</pre></details>"
    return f"<div><p><b>{escape(sentence)}</b></p>{figures}{picture}</div>"


FACES.update(
    report=_write_report,
    snapshot=_write_snapshot,
    explain=_explain,
    plan_html=_plan_html,
    parts_html=lambda plan: _in_html(str(plan)),
)
