"""The results as Markdown: a table per part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu.rows import Row, left_out, newest

MIB, GIB = 2**20, 2**30
NAMES = {"plain": "plain", "half": "half", "third": "+33.3 %", "blocks": "per block"}
STEPS = """One training step, forward and backward, gradients kept. Peaks are MiB that the allocator held above what was
there before the step (parameters, gradients, buffers, inputs); `predicted` is what the plan says. Times are medians of steps
that took turns, by events, as a ratio to the plain step. *half*: planned for half of the plain activations; *+33.3 %*: least
memory within a third more time, by measured costs of operators; *per block*: `torch.utils.checkpoint` around every block.
*reserved* is what the allocator took from the device in all. *same bits*: loss, gradients, buffers and random state of the
planned step against the plain one, under deterministic algorithms."""
LARGEST = """The largest batch that was really stepped in a process under the cap, found to within 4 %; *at least*: the search
ended before that was known, and a larger one may work. With a plan, the search begins where a plan that costs a third more
would just fit, and goes on from there. Throughput is that of the second step at that batch."""


def markdown(head: dict[str, Any], rows: list[Row]) -> str:
    """The whole report."""
    rows = newest(rows)
    facts: Row = next((r for r in rows if r["part"] == "facts" and r["status"] == "ok"), {})
    lines = [f"# On {facts.get('device', 'an unknown device')}, {head['date']}", ""]
    lines += [f"- command: `{head['command']}`, {head['seconds']:.0f} s", f"- {_facts(facts)}"]
    lines += ["- versions: " + ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items() if v), ""]
    for title, part in (("Steps", _steps), ("Largest batch under a cap", _largest), ("Tests on the device", _tests)):
        lines += [f"## {title}", "", *part(rows), ""]
    out = left_out(rows)
    missing = [r for r in rows if r["status"] not in ("ok", "skipped") and r["part"] != "jobs" and r not in out]
    for title, some in (("Left out for lack of time", out), ("Not measured", missing)):
        lines += [f"## {title}", "", *[f"- {_who(r)}: {_why(r)}" for r in some], ""] if some else []
    return "\n".join(lines)


def _facts(facts: Row) -> str:
    keys = ("driver", "cuda", "cudnn", "cudnn_benchmark", "tf32_convolutions", "float32_products", "cublas_workspace")
    told = ", ".join(f"{k.replace('_', ' ')} {facts[k]}" for k in keys if facts.get(k) is not None)
    size = f", {facts['device_bytes'] / GIB:.1f} GiB" if facts.get("device_bytes") else ""
    return f"device: {facts.get('device')}{size}; {told or 'no more is known'}; host: {facts.get('processor')}"


def _steps(rows: list[Row]) -> list[str]:
    mine = {(r["model"], r["method"]): r for r in rows if r["part"] == "steps" and "method" in r}
    models = list(dict.fromkeys(model for model, _ in mine))
    if not models:
        return ["nothing was measured"]
    header = ["model, batch", "plain", "plain reserved", "half", "half predicted", "half time", "+33.3 %",
              "+33.3 % predicted", "+33.3 % reserved", "+33.3 % time", "time predicted", "per block", "per block time",
              "same bits"]  # fmt: skip
    lines = []
    for model in models:
        plain, half, third, blocks = (mine.get((model, m), {}) for m in NAMES)
        lines.append([
            f"{model}, {plain['batch']}", _mib(plain, "peak_bytes"), _mib(plain, "reserved_bytes"),
            _mib(half, "peak_bytes"), _mib(half, "predicted_peak_bytes"), _times(half, "ratio"),
            _mib(third, "peak_bytes"), _mib(third, "predicted_peak_bytes"), _mib(third, "reserved_bytes"),
            _times(third, "ratio"), _times(third, "predicted_overhead", 1.0),
            _mib(blocks, "peak_bytes"), _times(blocks, "ratio"), _bits([half, third]),
        ])  # fmt: skip
    told = [STEPS, "", *_table(header, lines), ""]
    planned = [r for r in mine.values() if r.get("predicted_peak_bytes") and r.get("peak_bytes")]
    for what, error in (("peaks", _peak_error), ("step times", _time_error)):
        found = sorted(abs(e) for r in planned if (e := error(r)) is not None)
        if found:
            told.append(f"Predicted {what} against measured: {found[len(found) // 2]:.1%} apart in the median, "
                        f"{found[-1]:.1%} at most, over {len(found)} steps.")  # fmt: skip
    return told


def _largest(rows: list[Row]) -> list[str]:
    mine = {(r["model"], r["cap_bytes"], r["method"]): r for r in rows if r["part"] == "largest" and "method" in r}
    if not mine:
        return ["nothing was measured"]
    lines = []
    for model in dict.fromkeys(model for model, *_ in mine):
        for size in sorted({c for m, c, _ in mine if m == model}):
            plain, planned = (mine.get((model, size, m), {}) for m in ("plain", "planned"))
            lines.append([
                f"{model}, {plain.get('precision', planned.get('precision'))}", str(plain.get("cap") or planned["cap"]),
                _batch(plain), _rate(plain), _mib(plain, "peak_bytes"),
                _batch(planned), _rate(planned), _mib(planned, "peak_bytes"), _more(plain, planned),
            ])  # fmt: skip
    header = ["model", "cap", "plain batch", "per second", "peak", "planned batch", "per second", "peak", "batch"]
    return [LARGEST, "", *_table(header, lines), *_limits(list(mine.values()))]


def _batch(row: Row) -> str:
    if "batch" not in row:
        return "-"
    return f"{row['batch']}" if row.get("settled") else f"at least {row['batch']}"


def _more(plain: Row, planned: Row) -> str:
    """How much larger a batch is with a plan; nothing can be said where the plain one is not known."""
    if "batch" not in planned or not plain.get("settled") or "batch" not in plain:
        return "-"
    return f"{'' if planned.get('settled') else 'at least '}{planned['batch'] / plain['batch']:.1f}x"


def _limits(rows: list[Row]) -> list[str]:
    """What is to be known of single figures: where a search did not end, and where there was less than the cap."""
    told = [f"- {_who(r)}: at least {r['batch']}: {r['note']}" for r in rows if "batch" in r and not r.get("settled")]
    told += [
        f"- {_who(r)}: only {r['free_bytes'] / GIB:.2f} GiB of the cap were free, contexts and other processes held "
        f"{(r['cap_bytes'] - r['free_bytes']) / GIB:.2f} GiB of it"
        for r in rows
        if r.get("free_bytes") is not None and r["free_bytes"] < r["cap_bytes"]
    ]
    return ["", *told] if told else []


def _tests(rows: list[Row]) -> list[str]:
    mine = [r for r in rows if r["part"] == "tests" and "seconds" in r]
    if not mine:
        return ["none ran"]
    count = {s: sum(r["status"] == s for r in mine) for s in ("ok", "failed", "skipped")}
    told = f"{count['ok']} passed, {count['failed']} failed, {count['skipped']} skipped"
    return [f"{told}, in {sum(r['seconds'] for r in mine):.0f} s. They are those of `tests/` marked `gpu`."]


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] + ["---:"] * (len(header) - 1), *lines)]


def _mib(row: Row, key: str) -> str:
    if row.get(key) is None:
        return "-"
    size = row[key] / MIB
    return f"{size:,.0f}" if size >= 100 else f"{size:,.1f}"


def _times(row: Row, key: str, more: float = 0.0) -> str:
    return "-" if row.get(key) is None else f"{row[key] + more:.2f}"


def _rate(row: Row) -> str:
    return "-" if row.get("per_second") is None else f"{row['per_second']:,.1f}"


def _bits(rows: list[Row]) -> str:
    told = [r["parity"] for r in rows if r.get("parity") is not None]
    return "-" if not told else "yes" if all(told) else "NO"


def _peak_error(row: Row) -> float | None:
    return float(row["peak_bytes"] / row["predicted_peak_bytes"] - 1)


def _time_error(row: Row) -> float | None:
    return (
        row["seconds"] / row["predicted_seconds"] - 1 if row.get("seconds") and row.get("predicted_seconds") else None
    )


def _why(row: Row) -> str:
    """Status and note, of which the second may begin with the first."""
    return row["note"] if row["note"].startswith(row["status"]) else f"{row['status']}: {row['note']}"


def _who(row: Row) -> str:
    named = ", ".join(str(row[k]) for k in ("model", "cap", "method") if row.get(k) is not None)
    return f"{row['part']} {named or row.get('name', '')}".strip()
