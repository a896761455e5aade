"""The README's picture of measured steps, the picture of ResNet-50 and the figures of its sentence, from benchmarks/results/.

python benchmarks/readme_picture.py
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from page.hero import LOOKS, MEASURE, hero
from page.measured_steps import Point, measured, on_cpu, on_gpu
from page.rows import picked, read, table

HERE = Path(__file__).parent
ROWS = sorted((HERE / "results").glob("*-bench-seeds.jsonl"))
PICTURES = HERE.parent / "docs" / "pictures"
MODEL, USUAL = "resnet50", "checkpoint-blocks"


@cache
def rows() -> pd.DataFrame:
    """The model's rows; not to be changed."""
    t = table(read(ROWS))
    return t[t["model"] == MODEL]


def figures(t: pd.DataFrame) -> dict[str, float]:
    """Memory in GiB and extra time as a fraction: of checkpointing each block, and of `auto` within that memory."""
    by_method = picked(t, MEASURE).set_index("method")
    found = {"plain_gib": by_method.loc["plain", "peak_mb"] / 1024}
    for name, method in (("usual", USUAL), ("ours", f"auto={USUAL}")):
        found |= {
            f"{name}_gib": by_method.loc[method, "peak_mb"] / 1024,
            f"{name}_extra": by_method.loc[method, "extra_seconds"],
        }
    return found


def panels() -> dict[str, Sequence[Point]]:
    """title -> points of the picture of measured steps: the newest rows of GPT-2."""

    def newest(pattern: str) -> list[dict[str, object]]:
        for path in sorted((HERE / "results").glob(pattern), reverse=True):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if any(r["model"] == "gpt2" for r in rows):
                return rows
        raise FileNotFoundError(f"no file {pattern} in results/ has rows of GPT-2")

    return {
        "GPT-2 small, bf16, H200 (no compiled plan yet)": on_gpu(newest("*-gpu-peers-*.jsonl"), "gpt2"),
        "GPT-2, 6 layers of 256, one CPU thread": on_cpu(newest("*-compiled-steps.jsonl"), "gpt2"),
    }


def draw(figure: Figure, name: str) -> None:
    """Write the figure to docs/pictures."""
    out = io.BytesIO()
    with plt.rc_context({"svg.hashsalt": "rekindle"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    (PICTURES / f"{name}.svg").write_bytes(out.getvalue())


def main() -> None:
    t = rows()
    PICTURES.mkdir(exist_ok=True)
    for name, look in LOOKS.items():
        draw(hero(t, look), f"{MODEL}-{name}")
        draw(measured(panels(), look), f"measured-{name}")
    for name, value in figures(t).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
