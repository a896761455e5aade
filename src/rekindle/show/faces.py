"""The face of a plan: its reports, snapshots and explanations, each imported when it is first used."""

from __future__ import annotations

from typing import Any

from ..model.plan import FACES


def _write_report(*arguments: Any) -> None:
    from .report.make import write_report

    write_report(*arguments)


def _write_snapshot(*arguments: Any) -> None:
    from .snapshot import write_snapshot

    write_snapshot(*arguments)


def _explain(plan: Any) -> Any:
    from ..explain import explain

    return explain(plan)


def _plan_html(plan: Any) -> str:
    from .report.notebook import of_plan

    return of_plan(plan)


def _parts_html(plan: Any) -> str:
    from .report.notebook import of_parts

    return of_parts(plan)


FACES.update(
    report=_write_report, snapshot=_write_snapshot, explain=_explain, plan_html=_plan_html, parts_html=_parts_html
)
