"""The results of a GPU run as Markdown: one table per part, from rows and records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from page.text import formatted, percent, ratio, table

from gpu.rows import Row, left_out, newest, outcome

MB_PER_GIB = 2**10
COLUMNS = [
    "suite", "model", "case", "method", "batch", "outcome", "note", "cap", "cap_mb", "free_mb", "precision", "settled",
    "peak_mb", "predicted_mb", "reserved_mb", "wall_ratio", "overhead", "seconds", "predicted_seconds", "parity", "per_second",
    "rewrites", "largest_difference",
]  # fmt: skip
STEPS = """One training step, forward and backward, gradients kept. Peaks are MiB that the allocator held above its level before
the step (parameters, gradients, buffers, inputs); `predicted` is the plan's figure. Times are medians of steps in turns, by
events, as a ratio to the plain step. *half*: planned for half of the plain activations; *+33.3 %*: least memory within a third
more time, by measured costs of operators; *per block*: `torch.utils.checkpoint` around every block. *reserved* is all memory
that the allocator took from the device. *rewrites*: in how many ways the planned step (+33.3 %) is rewritten: smaller saves,
runs of ops in slices. *same bits*: loss, gradients, buffers and random state of the planned step equal the
plain step's, under deterministic algorithms; "-": two plain steps differ too, by fused attention."""
CLOSE = """The same steps planned with parity="close": slices may round. *difference*: the largest between a gradient of the
planned and of the plain step, relative to the largest element of that gradient; *as close as promised*: only results that may
round differ, within the limits of `rekindle.verify`; "-": plain steps differ from each other."""
COPIED = """Steps planned for half of the plain activations, without copies and with values copied to the host and back
(`offload=True`), by the measured speed of the link."""
COMPILED = """Steps through torch.compile; time and peak as ratios to the eager step of the same model. The fastest step of each
method counts, in turns. *planned in*: seconds of `checkpoint`, compiling included, where earlier goals may have compiled and
measured some ways already."""
LARGEST = """The largest batch that was really stepped in a process under the cap, found to within 4 %; *at least*: the search
ended before that was known, and a larger batch may work. With a plan, the search begins at the batch for which a plan that
costs a third more would just fit. *per second*: examples per second, in the second step at that batch."""


def markdown(head: dict[str, Any], rows: list[Row]) -> str:
    """The whole report."""
    rows = newest(rows)
    facts: Row = next((r for r in rows if r.get("part") == "facts" and r["status"] == "ok"), {})
    measured = pd.DataFrame([r for r in rows if "suite" in r], columns=COLUMNS)
    lines = [f"# On {facts.get('device', 'an unknown device')}, {head['date']}", ""]
    for title, part in (
        ("Steps", _steps(measured[measured["suite"] == "gpu-steps"])),
        ("Sums that may round", _close(measured[measured["suite"] == "gpu-steps"])),
        ("Copies to the host", _copied(measured[measured["suite"] == "gpu-steps"])),
        ("Compiled steps", _compiled([r for r in rows if r.get("part") == "compiled" and "method" in r])),
        ("Largest batch under a cap", _largest(measured[measured["suite"] == "gpu-largest"])),
        ("Tests on the device", _tests(rows)),
    ):
        lines += [f"## {title}", "", *part, ""]
    out = left_out(rows)
    missing = [r for r in rows if outcome(r) not in ("ok", "skipped") and r.get("part") != "jobs" and r not in out]
    for title, some in (("Left out for lack of time", out), ("Not measured", missing)):
        lines += [f"## {title}", "", *[f"- {_who(r)}: {_why(r)}" for r in some], ""] if some else []
    lines += [
        "## How it was measured",
        "",
        f"- command: `{head['command']}`, {head['seconds']:.0f} s",
        f"- {_facts(facts)}",
    ]
    lines += ["- versions: " + ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items() if v), ""]
    return "\n".join(lines)


def _facts(facts: Row) -> str:
    keys = ("driver", "cuda", "cudnn", "cudnn_benchmark", "tf32_convolutions", "float32_products", "cublas_workspace")
    told = ", ".join(f"{k.replace('_', ' ')} {facts[k]}" for k in keys if facts.get(k) is not None)
    size = f", {facts['device_bytes'] / 2**30:.1f} GiB" if facts.get("device_bytes") else ""
    return f"device: {facts.get('device')}{size}; {told or 'no more is known'}; host: {facts.get('processor')}"


def _by_method(rows: pd.DataFrame, model: str) -> dict[str, pd.Series]:
    """The rows of one model by method; a method without a row has missing figures."""
    mine = rows[rows["model"] == model].drop_duplicates("method", keep="last").set_index("method", drop=False)
    absent = pd.Series(index=rows.columns, dtype=object)
    return {
        m: mine.loc[m] if m in mine.index else absent
        for m in ("plain", "half", "copied", "third", "close", "blocks", "planned")
    }


def _steps(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["nothing was measured"]
    lines = []
    for model in rows["model"].unique():
        of = _by_method(rows, model)
        plain, half, third, blocks = (of[m] for m in ("plain", "half", "third", "blocks"))
        lines.append({
            "model, batch": f"{model}, {rows.loc[rows['model'] == model, 'batch'].iloc[0]:g}",
            "plain": _mib(plain["peak_mb"]), "plain reserved": _mib(plain["reserved_mb"]),
            "half": _mib(half["peak_mb"]), "half predicted": _mib(half["predicted_mb"]), "half time": ratio(half["wall_ratio"]),
            "+33.3 %": _mib(third["peak_mb"]), "+33.3 % predicted": _mib(third["predicted_mb"]),
            "+33.3 % reserved": _mib(third["reserved_mb"]), "+33.3 % time": ratio(third["wall_ratio"]),
            "time predicted": ratio(None if pd.isna(third["overhead"]) else 1 + third["overhead"]),
            "per block": _mib(blocks["peak_mb"]), "per block time": ratio(blocks["wall_ratio"]),
            "rewrites": formatted(third["rewrites"], "g"), "same bits": _bits(half["parity"], third["parity"]),
        })  # fmt: skip
    told = [STEPS, "", table(lines), ""]
    planned = rows[rows["predicted_mb"].notna() & rows["peak_mb"].notna()]
    for what, measured, predicted in (
        ("peaks", "peak_mb", "predicted_mb"),
        ("step times", "seconds", "predicted_seconds"),
    ):
        apart = (planned[measured].astype(float) / planned[predicted].astype(float) - 1).abs().dropna().sort_values()
        if len(apart):
            told.append(f"Predicted {what} against measured: {percent(apart.iloc[len(apart) // 2])} apart in the median, "
                        f"{percent(apart.iloc[-1])} at most, over {len(apart)} steps.")  # fmt: skip
    return told


def _close(rows: pd.DataFrame) -> list[str]:
    if not (rows["method"] == "close").any():
        return ["nothing was measured"]
    lines = []
    for model in rows.loc[rows["method"] == "close", "model"].unique():
        of = _by_method(rows, model)
        third, close = of["third"], of["close"]
        lines.append({
            "model, batch": f"{model}, {close['batch']:g}", "plain": _mib(of["plain"]["peak_mb"]),
            "same bits": _mib(third["peak_mb"]), "same bits, time": ratio(third["wall_ratio"]),
            "close": _mib(close["peak_mb"]), "close, predicted": _mib(close["predicted_mb"]),
            "close, time": ratio(close["wall_ratio"]), "rewrites": formatted(close["rewrites"], "g"),
            "difference": formatted(close["largest_difference"] if close["parity"] is True else None, ".1e"),
            "as close as promised": _bits(close["parity"]),
        })  # fmt: skip
    return [CLOSE, "", table(lines)]


def _copied(rows: pd.DataFrame) -> list[str]:
    lines = []
    for model in rows.loc[rows["method"] == "copied", "model"].unique():
        of = _by_method(rows, model)
        half, copied = of["half"], of["copied"]
        lines.append({
            "model, batch": f"{model}, {copied['batch']:g}",
            "half": _mib(half["peak_mb"]), "half, time": ratio(half["wall_ratio"]),
            "copied": _mib(copied["peak_mb"]), "copied, predicted": _mib(copied["predicted_mb"]),
            "copied, time": ratio(copied["wall_ratio"]),
            "time predicted": ratio(None if pd.isna(copied["overhead"]) else 1 + copied["overhead"]),
            "same bits": _bits(copied["parity"]),
        })  # fmt: skip
    return [COPIED, "", table(lines)] if lines else ["nothing was measured"]


def _compiled(rows: list[Row]) -> list[str]:
    if not rows:
        return ["nothing was measured"]
    lines = [
        {
            "model": r["model"], "method": r["method"], "time": ratio(r["of_eager"]), "peak": ratio(r["peak_of_eager"]),
            "MiB": _mib(r["peak"] / 2**20), "predicted": _mib(r["predicted"] / 2**20 if "predicted" in r else None),
            "planned in": formatted(r.get("plan_seconds"), ".0f"),
        }
        for r in rows
    ]  # fmt: skip
    return [COMPILED, "", table(lines)]


def _largest(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["nothing was measured"]
    lines = []
    for case in rows["case"].unique():
        mine = rows[rows["case"] == case].sort_values("cap_mb", kind="stable")
        for model in mine["model"].unique():
            of = _by_method(mine, model)
            plain, planned = of["plain"], of["planned"]
            known = mine[mine["model"] == model].iloc[0]
            lines.append({
                "model": f"{case}, {known['precision']}", "cap": str(known["cap"]),
                "plain batch": _batch(plain), "plain per second": _rate(plain), "plain peak": _mib(plain["peak_mb"]),
                "planned batch": _batch(planned), "planned per second": _rate(planned),
                "planned peak": _mib(planned["peak_mb"]), "batch": _more(plain, planned),
            })  # fmt: skip
    return [LARGEST, "", table(lines), *_limits(rows)]


def _settled(row: pd.Series | Row) -> bool:
    """Whether the search for the largest batch ended."""
    return pd.notna(row["settled"]) and bool(row["settled"])


def _batch(row: pd.Series) -> str:
    if pd.isna(row["batch"]):
        return "-"
    return f"{row['batch']:g}" if _settled(row) else f"at least {row['batch']:g}"


def _more(plain: pd.Series, planned: pd.Series) -> str:
    """How much larger the batch is with a plan; unknown without a settled plain one."""
    if pd.isna(planned["batch"]) or pd.isna(plain["batch"]) or not _settled(plain):
        return "-"
    return f"{'' if _settled(planned) else 'at least '}{planned['batch'] / plain['batch']:.1f}x"


def _limits(rows: pd.DataFrame) -> list[str]:
    """Limits of single figures: searches that did not end, and devices with less memory free than the cap."""

    def told() -> Iterator[str]:
        for r in rows[rows["batch"].notna()].to_dict("records"):
            if not _settled(r):
                yield f"- {_who(r)}: at least {r['batch']:g}: {r['note']}"
        for r in rows[rows["free_mb"] < rows["cap_mb"]].to_dict("records"):
            free, cap = r["free_mb"] / MB_PER_GIB, r["cap_mb"] / MB_PER_GIB
            yield (f"- {_who(r)}: only {free:.2f} GiB of the cap were free, contexts and other processes held "
                   f"{cap - free:.2f} GiB of it")  # fmt: skip

    found = list(told())
    return ["", *found] if found else []


def _tests(rows: list[Row]) -> list[str]:
    mine = [r for r in rows if r.get("part") == "tests" and "seconds" in r]
    if not mine:
        return ["none ran"]
    count = {s: sum(r["status"] == s for r in mine) for s in ("ok", "failed", "skipped")}
    told = f"{count['ok']} passed, {count['failed']} failed, {count['skipped']} skipped"
    return [f"{told}, in {sum(r['seconds'] for r in mine):.0f} s. They are the tests of `tests/` marked `gpu`."]


def _mib(size: float | None) -> str:
    return formatted(size, ",.0f" if size is not None and size >= 100 else ",.1f")


def _rate(row: pd.Series) -> str:
    return formatted(row["per_second"], ",.1f")


def _bits(*parity: bool | None) -> str:
    told = [p for p in parity if not pd.isna(p)]
    return "-" if not told else "yes" if all(told) else "NO"


def _why(row: Row) -> str:
    """Outcome and note; the note may already begin with the outcome."""
    word = outcome(row)
    return row["note"] if row["note"].startswith(word) else f"{word}: {row['note']}"


def _who(row: Row) -> str:
    part = row.get("part") or str(row["suite"]).removeprefix("gpu-")
    model = row["case"] if isinstance(row.get("case"), str) else row.get("model")
    named = ", ".join(str(x) for x in (model, row.get("cap"), row.get("method")) if isinstance(x, str))
    return f"{part} {named or row.get('name', '')}".strip()
