"""The benchmark pages: a summary, one page per suite, an appendix, and the files written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from page import losses, published, summary, text, unit_costs
from page.frontier import frontier_svg
from page.growth import growth_part
from page.heads import heads_part
from page.measured import measured_part
from page.on_cpu import SUITE, cpu_part
from page.rounding import rounding_part
from page.rows import MODEL, table
from page.solve_times import times_part
from page.standings import standings
from rekindle.bench.row import Row
from rekindle.errors import UsageError

TITLES = {
    "seeds": "Published models", "modern": "Modern models", "deep": "Deep models and long sequences",
    SUITE: "Small models on a CPU",
}  # fmt: skip
APPENDIX = "appendix"
PICTURE = """```{image} pictures/resnet50-light.svg
:class: only-light follows-theme
:alt: ResNet-50, memory against extra time; Rekindle's line lies below every other method
```

```{image} pictures/resnet50-dark.svg
:class: only-dark follows-theme
:alt: ResNet-50, memory against extra time; Rekindle's line lies below every other method
```

`python benchmarks/readme_picture.py` draws it from the same rows."""


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write the summary to `out`, and the other pages and the pictures to the folder beside it of the same name.

    Removes pages and SVG files of that folder that are no longer made. Returns the files written, the summary first.

    Raises
    ------
    UsageError : there are no rows.
    """
    pages, pictures = made(rows, out.stem)
    folder = out.parent / out.stem
    folder.mkdir(parents=True, exist_ok=True)
    files = {out: pages.pop(""), **{folder / f"{name}.md": words for name, words in pages.items()}}
    files |= {folder / name: picture for name, picture in pictures.items()}
    for old in (*folder.glob("*.svg"), *folder.glob("*.md")):
        if old not in files:
            old.unlink()
    for path, words in files.items():
        path.write_text(words, encoding="utf-8")
    return list(files)


def made(rows: Sequence[Row], folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """The pages as Markdown ("" is the summary, the others stand in `folder`) and their pictures (file name -> SVG).

    Raises
    ------
    UsageError : there are no rows.
    """
    if not rows:
        raise UsageError("the page needs at least one row; run `rekindle bench` first")
    everything = table(rows)
    t = everything[~everything["close"]]  # plans that are not held to the plain step's bits have a table of their own
    pictures: dict[str, str] = {}
    full = t[t["suite"] != SUITE]
    found = standings(full)
    pages = {
        text.slug(suite): _suite(suite, mine, _of_close_plans(everything[everything["suite"] == suite]), pictures)
        for suite, mine in _suites(t)
    }
    pages[APPENDIX] = _joined(
        "# Benchmarks: appendix\n\n" + _made_by(), losses.dominated_part(found, f"../{folder}.md"),
        times_part(full, ".", pictures), _failed(everything), measured_part(everything),
    )  # fmt: skip
    return {"": _summary(t, full, found, list(pages), folder), **pages}, pictures


def _suites(t: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Suites with their rows: those with a title first, in the order of the titles."""
    present = list(dict.fromkeys(t["suite"]))
    order = [*(s for s in TITLES if s in present), *(s for s in present if s not in TITLES)]
    return [(s, t[t["suite"] == s]) for s in order]


def _summary(t: pd.DataFrame, full: pd.DataFrame, found: pd.DataFrame, names: list[str], folder: str) -> str:
    links = "\n".join(f"- [{_title(n)}]({folder}/{n}.md)" for n in names)
    contents = "\n".join(f"{folder}/{n}" for n in names)
    losing = losses.lose_part(found, f"{folder}/{APPENDIX}.md")
    shown = PICTURE if summary.HERO in set(t["model"]) else ""
    return _joined(
        "# Benchmarks", summary.results(t, full, found), shown, summary.one_table(full), losing, summary.also_loses(t),
        summary.names(), f"## Pages\n\n{links}\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```",
    )  # fmt: skip


def _of_close_plans(rows: pd.DataFrame) -> str:
    """The parts of a suite that have plans whose gradients may be equal up to rounding. rows : all of the suite."""
    return "\n\n".join(p for p in (rounding_part(rows), heads_part(rows)) if p)


def _suite(suite: str, rows: pd.DataFrame, close: str, pictures: dict[str, str]) -> str:
    """The page of one suite: its tables, then a picture per model. close : what `_of_close_plans` gives."""
    words = (
        f"The suite {suite}, {rows['model'].nunique()} models. [Names of methods](../benchmarks.md#names-of-methods)."
    )
    head = f"# {_title(suite)}\n\n{words}"
    if suite == SUITE:
        return _joined(head, cpu_part(rows), close)
    parts = (published.published_part(rows), unit_costs.unit_part(rows), close, growth_part(rows, ".", pictures))
    return _joined(head, *parts, _curves(rows, pictures))


def _title(name: str) -> str:
    return "Appendix" if name == APPENDIX else TITLES.get(name, f"Suite {name}")


def _joined(*parts: str) -> str:
    return "\n\n".join(p for p in parts if p) + "\n"


def _made_by() -> str:
    return "`make bench-report` makes these pages from the rows in `benchmarks/results/`."


def _curves(t: pd.DataFrame, pictures: dict[str, str]) -> str:
    """A picture per model, folded away."""
    parts = [
        "## Memory against extra cost, model by model\n\n"
        "The blue staircase joins `auto`'s rows and shows only measured points. If rows carry a certified "
        "bound, no plan can lie in "
        "the grey area beyond the dashed line. Marks beyond the edge stand at the edge; the list below the "
        "panels has all figures."
    ]
    for (suite, model), mine in t.groupby(MODEL, sort=False):
        if mine["plain_peak_mb"].isna().all() or not mine["ran"].any():
            continue
        name = f"{text.slug(str(suite))}-{text.slug(str(model))}.svg"
        pictures[name] = frontier_svg(mine)
        parts.append(
            _folded(text.escaped(str(model)), f"![Memory against extra cost: {text.escaped(str(model))}]({name})")
        )
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _folded(head: str, inside: str) -> str:
    return f"<details><summary>{head}</summary>\n\n{inside}\n\n</details>"


def _failed(t: pd.DataFrame) -> str:
    failed = t[~t["ran"]]
    if failed.empty:
        return ""
    lines = pd.DataFrame({
        "model": failed["model"], "method": failed["method"], "planned by": failed["planned_in"].fillna("-"),
        "why": [text.short(note) if isinstance(note, str) and note else "not stated" for note in failed["note"]],
    }).drop_duplicates()  # a method without a plan fails alike whatever cost the others minimise  # fmt: skip
    words = "Rows without a figure, and why: the method cannot run on the model, or its goal cannot be met."
    rows = text.table(lines.to_dict("records"), texts=("method", "planned by", "why"))
    return f"## What could not run\n\n{words}\n\n{_folded(f'{len(lines):,} rows', rows)}"
