"""The benchmark report: a Markdown page and its pictures, every figure in them from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bench.methods import TARGET
from ..errors import UsageError
from . import markdown as md
from . import on_cpu
from .curves import frontier_chart
from .domination import standings
from .growth import growth_part
from .losses import dominated_part, lose_part
from .published import published_part
from .rows import Row, by_model, plain_mb, planned_in
from .solve_times import times_part
from .unit_costs import unit_part


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write the page to `out` and its pictures to the folder beside it that has its name; returns the files written.

    SVG files of that folder that the page no longer shows are removed.

    Raises
    ------
    UsageError : there are no rows.
    """
    text, pictures = page(rows, out.stem)
    folder = out.parent / out.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.name not in pictures:
            old.unlink()
    for name, svg in pictures.items():
        (folder / name).write_text(svg, encoding="utf-8")
    out.write_text(text, encoding="utf-8")
    return [out, *(folder / name for name in pictures)]


def page(rows: Sequence[Row], folder: str) -> tuple[str, dict[str, str]]:
    """The page's Markdown and its pictures (file name -> SVG), which the page expects in `folder`.

    Raises
    ------
    UsageError : there are no rows.
    """
    if not rows:
        raise UsageError("a report needs at least one row; run `rekindle bench` first")
    pictures: dict[str, str] = {}
    small = [r for r in rows if r["suite"] == on_cpu.SUITE]
    full = [r for r in rows if r["suite"] != on_cpu.SUITE]
    found = standings(full)
    parts = ["# Benchmarks", _measured(rows), lose_part(full, found), published_part(full), unit_part(full)]
    parts += [growth_part(full, folder, pictures), on_cpu.cpu_part(small), _curves(full, folder, pictures)]
    parts += [dominated_part(found), times_part(full, folder, pictures), _failed(rows)]
    return "\n\n".join(p for p in parts if p) + "\n", pictures


# -- what was measured how ---------------------------------------------------------------------------------------------
def _measured(rows: Sequence[Row]) -> str:
    ran = [r for r in rows if r["status"] == "ok"]
    lines = [
        f"Every figure on this page comes from {len(rows):,} rows of `rekindle bench` (one per model, method and cost; "
        f"{len(by_model(rows))} models, {len({r['method'] for r in rows})} methods); the page is generated from them.",
        "",
        "- **Peak** is of the executed training step, forward and backward: the most bytes in live storages that the step "
        "made, counted at operator boundaries. Most suites run on fake tensors at full batch size: these have shapes and "
        "storages but no data, so the peak is exact to the byte and the same on every run, and no GPU is needed. MB is "
        "2^20 bytes. In the suite seeds the published protocol is followed: the input and its gradient count. An "
        "allocator's rounding and fragmentation come on top. Where a model asks what follows from shapes (whether its mask "
        "masks anything), it takes the branch that it takes with data.",
        "- **Extra FLOPs** are measured: those of the operators that the step ran, over the plain step's.",
        *_modelled(rows),
        "- **Certified**: below that peak no schedule exists within that extra cost, whatever its order.",
        "- **auto@8%** is the least memory within 8 % extra cost, **auto=0.5** the least cost within half of the plain "
        "activation peak, **auto=ogc** the least cost within the memory of the published solver, **auto=NAME** within that "
        "of another method. A registered solver's bare name is its plan of least memory. **checkpoint-blocks** to "
        "**compile-0** are what PyTorch brings.",
    ]
    apart = [abs(r["peak_mb"] / r["predicted_mb"] - 1) for r in ran if r.get("predicted_mb")]
    if apart:
        lines.append(
            f"- The executed peak is within {max(apart):.2%} of the predicted one in all {len(apart)} planned rows."
        )
    same = [r for r in rows if r.get("parity") is not None]
    if same:
        good = sum(r["parity"] for r in same)
        lines.append(f"- Bitwise parity with the plain step: {good} of the {len(same)} rows where it could be told.")
    lines += ["", "| | |", "|---|---|", f"| dates | {md.span(r.get('date') for r in rows)} |"]
    lines.append(f"| hardware | {md.listed(r.get('hardware') for r in rows)} |")
    for name in dict.fromkeys(k for r in rows for k in r.get("versions") or {}):
        lines.append(f"| {name} | {md.listed(str((r.get('versions') or {}).get(name, '')) for r in rows)} |")
    if any(r.get("commit") for r in rows):
        lines.append(f"| commit | {md.listed(r.get('commit') for r in rows)} |")
    lines += ["", "To reproduce:", "", "```sh", *_commands(rows), "```"]
    return "\n".join(lines)


def _modelled(rows: Sequence[Row]) -> list[str]:
    timed = [r for r in rows if r.get("seconds_overhead") is not None]
    names = dict.fromkeys(r.get("target") or TARGET for r in timed)
    told = " or ".join("an RTX 2080 Ti, the published table's card" if n == TARGET else n for n in names)
    text = f"- **Extra time** is modelled, not measured: the roofline of {told}. Every operator takes a launch; none overlap."
    return [text] if timed else []


def _commands(rows: Sequence[Row]) -> list[str]:
    """What was run, where rows say so; else what runs the same models under the same methods."""
    told = list(dict.fromkeys(r["command"] for r in rows if r.get("command")))
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for r in rows:
        if not r.get("command"):
            groups.setdefault((r["suite"], r.get("cost") or "flops", r.get("target") or TARGET), []).append(r)
    for (suite, cost, target), mine in groups.items():
        methods, models = dict.fromkeys(r["method"] for r in mine), dict.fromkeys(r["model"] for r in mine)
        every = len(models) == len({r["model"] for r in rows if r["suite"] == suite})
        told.append(
            f"rekindle bench --suite {suite}{'' if every else ' --models ' + ','.join(models)} "
            f"--methods {','.join(methods)} --cost {cost}{'' if target == TARGET else ' --target ' + target} "
            f"--out out/bench-{suite}.jsonl"
        )
    return [*told, "make bench-report"]


# -- curves and failures ------------------------------------------------------------------------------------------------
def _curves(rows: Sequence[Row], folder: str, pictures: dict[str, str]) -> str:
    parts = [
        "## Peak against extra cost, model by model\n\n"
        "The blue staircase joins auto's rows; nothing is drawn between them that was not measured. Where rows carry a "
        "certified bound, no plan can lie in the grey area under the dashed line. Marks beyond the right edge stand at it; "
        "the key has all figures."
    ]
    for (suite, model), mine in by_model(rows).items():
        if plain_mb(mine) is None or not any(r["status"] == "ok" for r in mine):
            continue
        name = f"{md.slug(suite)}-{md.slug(model)}.svg"
        pictures[name] = frontier_chart(mine)
        parts.append(f"### {model} ({suite})\n\n![Peak against extra cost: {model}]({folder}/{name})")
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _failed(rows: Sequence[Row]) -> str:
    failed = [r for r in rows if r["status"] != "ok"]
    if not failed:
        return ""
    table = [["model", "method", "planned by", "why"]]
    lines = [(r["model"], r["method"], planned_in(r) or "-", md.short(r.get("note") or "not said")) for r in failed]
    table += map(list, dict.fromkeys(lines))  # what plans nothing is the same whatever the others are planned by
    text = "Rows without a figure, and why: a method that cannot run on the model, or a goal that cannot be met."
    return f"## What could not run\n\n{text}\n\n{md.table(table, texts=(1, 2, 3))}"
