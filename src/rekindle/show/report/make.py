"""Makes reports: the page of a plan as text, and as a file."""

from __future__ import annotations

import os
from dataclasses import replace

from ... import certificates
from ...arguments import callback, file_name
from ...errors import UsageError
from ...model.files import check_writable, write_text
from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...progress import Progress, announce
from . import document
from .curve import Frontier, points_of
from .write import page


def report(plan: Plan | PartsPlan, frontier: Frontier = None, progress: Progress = None) -> str:
    """The HTML page of a plan, or of the plans of a model's parts. Arguments and errors as `write_report`."""
    if plan.kind == "parts":
        if frontier is not None and not isinstance(frontier, bool):
            raise UsageError("the plan of a model's parts has a curve for each part; give frontier=True, False or None")
        # A part is chosen also for what it holds between its forward and its backward, so its own curve says less: unasked,
        # there is none.
        frontier = bool(frontier)
    plan = plan.each(lambda p: proven(p, progress))
    curves = [points_of(p, frontier, document.time_axis(p).weights, progress) for p, _ in plan.distinct()]
    return page(document.of_plan(plan, curves))


def proven(plan: Plan, progress: Progress = None) -> Plan:
    """The plan, `verified` where its certificate is proven in a few seconds, which is longer than reading a file may take."""
    if plan.verified:
        return plan
    announce(progress, "proving the certificate of the file")
    return replace(plan, verified=certificates.holds(plan, certificates.PATIENT))


def write_report(
    plan: Plan | PartsPlan, path: str | os.PathLike[str], frontier: Frontier = None, progress: Progress = None
) -> None:
    """Write the report of a plan to one HTML file, whole or not at all.

    frontier : the memory/time curve that the page shows: plans of the same graph, as `rekindle.frontier` gives them; True: a
        search of a few seconds; False: none; None: a search if the graph is small.
    progress : as in `rekindle.plan`.

    Raises
    ------
    UsageError : `path` is no path or cannot be written; `frontier` holds something else, or plans of another graph.
    RekindleError : the disk is full or fails.
    """
    check_writable(file_name(path))
    callback("progress", progress)
    write_text(path, report(plan, frontier, progress))
