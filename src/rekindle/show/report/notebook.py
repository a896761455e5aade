"""The short form of a plan in a notebook: its figures, its sentence, and its memory over time."""

from __future__ import annotations

from html import escape

from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...printed import printable
from ..timeline import memory_timeline


def html(plan: Plan | PartsPlan) -> str:
    """HTML of a plan: a notebook shows it, and prints `str(plan)` where it shows no HTML.

    It holds the lines of `str(plan)`, the sentence in front; and a picture, of the plan of a whole step.
    """
    *rows, sentence = printable(str(plan), keep="\n").split("\n")
    table = "\n".join(rows)
    words = f"<p><b>{escape(sentence)}</b></p><details><summary>Figures</summary><pre>{escape(table)}</pre></details>"
    return f"<div>{words}{_picture(plan) if plan.kind == 'step' else ''}</div>"


def _picture(plan: Plan) -> str:
    limit = plan.goal.limit(plan.graph.resident_bytes, plan.baseline_activation_bytes)
    return memory_timeline(plan.graph, plan.schedule, budget=limit, cost=plan.cost, target=plan.trace_options.target)
