"""The README's picture and the figures of its sentence, from the rows of ResNet-50 in benchmarks/results/.

python benchmarks/readme_picture.py
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt
from page.hero import LOOKS, MEASURE, hero
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


def main() -> None:
    t = rows()
    PICTURES.mkdir(exist_ok=True)
    for name, look in LOOKS.items():
        out, figure = io.BytesIO(), hero(t, look)
        with plt.rc_context({"svg.hashsalt": "rekindle"}):
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
        (PICTURES / f"{MODEL}-{name}.svg").write_bytes(out.getvalue())
    for name, value in figures(t).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
