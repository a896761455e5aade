"""Makes reports: the page of a plan as text, and as a file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import replace
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from ...arguments import callback, file_name
from ...errors import UsageError
from ...model.files import check_writable, write_text
from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...planning import certify
from ...saying.progress import Progress, announce
from . import document
from .curve import Frontier, points_of

# in the order in which they run
SCRIPTS = (
    "base.js", "track.js", "marks.js", "cursor.js", "gestures.js", "memory.js", "tree.js", "holders.js", "curve.js",
    "tables.js", "report.js",
)  # fmt: skip
PAGE = "page"  # the folder of the page's files, beside this one


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
    return replace(plan, verified=certify.holds(plan, certify.PATIENT))


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


def page(document: dict[str, Any]) -> str:
    """The HTML of a document. The page loads nothing: it tells the browser to refuse all requests and all other scripts."""
    script = "\n".join(_file(name) for name in SCRIPTS)
    style = _file("report.css")
    return Template(_file("report.html")).substitute(
        title=escape(f"{document['title']}: Rekindle report"), verdict=escape(document["verdict"]),
        script=script, style=style, script_hash=_hash(script), style_hash=_hash(style), data=_island(document),
    )  # fmt: skip


def _island(document: dict[str, Any]) -> str:
    """The document as JSON in which no text can end the element around it, or begin another one."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    """The hash by which a content security policy knows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(PAGE, name).read_text("utf-8").strip()
