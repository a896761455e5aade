"""Docstrings as this project writes them, made into reStructuredText for Sphinx.

Two things differ from plain text: sections such as "Raises" that are underlined with dashes, and entries of the form
"name : text" whose later lines are indented. Sections become rubrics, and entries become definition lists.
"""

from __future__ import annotations

import re
from typing import Any

UNDERLINE = re.compile(r"^-{3,}$")
ENTRY = re.compile(r"^((?:[A-Za-z_]\w*)(?:, [A-Za-z_]\w*)*) : (.+)$")
RAISED = ("Raises", "Warns")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx calls this for each docstring; `lines` is changed in place."""
    lines[:] = converted(lines)


def converted(lines: list[str]) -> list[str]:
    """The docstring's lines as reStructuredText."""
    out: list[str] = []
    section, in_entry = "", False
    for i, line in enumerate(lines):
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if UNDERLINE.match(following) and line.strip():
            section, in_entry = line.strip(), False
            out += ["", f".. rubric:: {section}", ""]
        elif UNDERLINE.match(line):
            continue
        elif entry := ENTRY.match(line):
            if not in_entry and out and out[-1]:
                out.append("")
            out += [", ".join(_term(n, section) for n in entry[1].split(", ")), f"    {entry[2]}"]
            in_entry = True
        else:
            if line.strip() and not line.startswith(" ") and in_entry:
                in_entry = False
                out.append("")
            out.append(line)
    return out


def _term(name: str, section: str) -> str:
    return f":py:exc:`~rekindle.{name}`" if section in RAISED else f"``{name}``"
