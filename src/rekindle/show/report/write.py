"""The page of a report: the document as data inside one HTML file with its own script and style."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

# in the order in which they run
SCRIPTS = (
    "base.js", "track.js", "marks.js", "cursor.js", "gestures.js", "memory.js", "tree.js", "holders.js", "curve.js",
    "tables.js", "report.js",
)  # fmt: skip
PAGE = "page"  # the folder of the page's files, beside this one


def page(document: dict[str, Any]) -> str:
    """The HTML of a document. It loads nothing: the browser is told to refuse every request, and every other script."""
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
