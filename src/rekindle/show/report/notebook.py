"""The short form of a plan in a notebook: its figures, its sentence, and its memory over time."""

from __future__ import annotations

from html import escape

from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...printed import printable
from ..timeline import memory_timeline


def of_plan(plan: Plan) -> str:
    """HTML of a plan: a notebook shows it, and prints `str(plan)` where it shows no HTML."""
    picture = memory_timeline(
        plan.graph, plan.schedule, budget=plan.limit, cost=plan.cost, target=plan.trace_options.target
    )
    return f"<div>{_words(plan)}{picture}</div>"


def of_parts(plan: PartsPlan) -> str:
    """HTML of the plans of a model's parts."""
    return f"<div>{_words(plan)}</div>"


def _words(plan: Plan | PartsPlan) -> str:
    """The lines of `str(plan)`: its table as it is, and its sentence in front."""
    *rows, sentence = printable(str(plan), keep="\n").split("\n")
    table = "\n".join(rows)
    return f"<p><b>{escape(sentence)}</b></p><details><summary>Figures</summary><pre>{escape(table)}</pre></details>"
