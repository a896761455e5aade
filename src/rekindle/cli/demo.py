"""The command `demo`: the main job end to end, on this machine's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .answer import Answer, err_console, out_console
from .options import Json

Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write the SVG pictures to.")]
Quick = Annotated[bool, typer.Option("--quick", help="Take smaller models and fewer steps.")]


def demo(out: Folder = Path("."), quick: Quick = False, json: Json = False) -> Answer:
    """Plan a ResNet-50 and a small GPT at half their activation memory; train both plain and planned; compare."""
    from ..demo import run

    result = run(out, err_console() if json else out_console(), quick)
    verdict = "bitwise equal, and within budget" if result["ok"] else "NOT as promised: see the tables above"
    return Answer(result, lambda: [f"{verdict}; {result['seconds']:.0f} s in all"], 0 if result["ok"] else 1)
