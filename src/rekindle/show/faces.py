"""The face of a plan: its reports, snapshots and explanations, each imported when it is first used."""

from __future__ import annotations

from typing import Any

from ..model.any_plan import FACES


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
    from .report.notebook import html

    return html(plan)


FACES.update(report=_write_report, snapshot=_write_snapshot, explain=_explain, html=_html)
