"""Blocks of code in Markdown pages."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its code, and the line of the page at which the code begins."""

    language: str
    code: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks of one language, in order."""
    words = page.read_text(encoding="utf-8")
    found = [Block(m[2], textwrap.dedent(m[3]), words.count("\n", 0, m.start(3)) + 1) for m in FENCE.finditer(words)]
    return [b for b in found if b.language == language]


def pages() -> list[Path]:
    """README and the pages that are written by hand or by benchmarks/, which are all that are committed."""
    made = {"api.md", "examples.md", "operators.md"}
    return [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in made)]
