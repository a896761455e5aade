"""A small graph for the command line, and what a command printed and returned."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rekindle.cli import main
from rekindle.model.graph import BOUNDARY, Graph, Op, Value

PLAIN = 150  # peak of `step`: 100 resident, and during b2 the values 1, 2, 3, 4 and 5


def step() -> Graph:
    """A chain of two ops and its backward, 10 bytes each; the largest op holds 30."""
    ops = (
        Op("f0", (0,), (1,), seconds=1.0, flops=4),
        Op("f1", (1,), (2,), seconds=1.0, flops=4),
        Op("f2", (2,), (3,), seconds=1.0, flops=4),
        Op(BOUNDARY, (3,), (4,), recompute=False),
        Op("b2", (4, 2), (5,), seconds=2.0, flops=8, backward=True),
        Op("b1", (5, 1), (6,), seconds=2.0, flops=8, backward=True),
        Op("b0", (6,), (7,), seconds=2.0, flops=8, backward=True),
    )
    return Graph((Value(10),) * 8, ops, (7, 3), resident_bytes=100, name="step")


def without_progress(text: str) -> str:
    """The text of stderr without the lines that a command prints where it takes more than two seconds."""
    return re.sub(r"^rekindle: [^\n]*, \d+ s\n", "", text, flags=re.MULTILINE)


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def screen(text: str) -> list[str]:
    """The lines as a terminal shows them, without colours, and without blanks at their ends."""
    lines = []
    for line in COLOUR.sub("", text).split("\n"):
        shown: list[str] = []
        for part in line.split("\r"):
            shown[: len(part)] = part
        lines.append("".join(shown).rstrip())
    return lines


class Ran:
    """What a command printed and returned; lines of progress are left out."""

    def __init__(self, capfd: pytest.CaptureFixture[str], *args: object):
        self.code = main([str(a) for a in args])
        self.out, err = capfd.readouterr()
        self.err = without_progress(err)

    @property
    def document(self) -> Any:
        """stdout as one JSON document; anything else there fails."""
        return json.loads(self.out)


def assert_one_paragraph(text: str) -> None:
    text = without_progress(text)
    assert text.startswith("error: ")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
