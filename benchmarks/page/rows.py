"""Rows of `rekindle bench` as one pandas table.

A field that a row does not have is missing in the table (NaN), never zero. Derived columns, which every part of the page uses:

ran                   whether the row has figures
solver_name           the method without its goal: "auto@8%" -> "auto"
close                 whether the plan may add up a gradient in another order than the plain step: "auto@8%~close"
planned_in            the cost that the row's plan minimised; missing if nothing was planned
plain_peak_mb         the plain step's activation peak of the row's model, MB
share                 the row's peak as a share of plain_peak_mb
extra_flops           extra FLOPs over the plain step, measured, as a fraction
extra_seconds         extra modelled time over the plain step, as a fraction
extra_unit            extra op runs, as a fraction; only rows planned in unit costs have it
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from rekindle.bench.files import NAMES, NUMBERS, TEXTS, checked, read_rows
from rekindle.bench.row import Row, key
from rekindle.errors import FormatError

COLUMNS = [*NAMES, "status", *TEXTS, *NUMBERS, "parity", "sums", "versions"]
SHARED = ("date", "hardware", "command", "commit")  # fields that a JSON document may state once for all its rows
MODEL = ["suite", "model"]
UNUSED = "-unused"  # the end of the name of a model whose plans leave its logits out


def read(paths: Iterable[str | os.PathLike[str]], tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The rows of files, the newest of each key (suite, model, method, cost, target).

    A file holds one row per line, or (*.json) is one JSON object with its rows under "rows" and shared fields beside it.
    Within a file of lines the later line wins. Between files, and within a JSON object, the later date wins, and of equal
    dates the later row read. A last line that was cut off is skipped, and `tell` says so.

    Raises
    ------
    FormatError : a file cannot be read, is damaged, or has a wrong field; the message names the file and the row.
    """
    kept: dict[Any, Row] = {}
    for row in (row for path in paths for row in _read(Path(path), tell)):
        k = key(row)
        if k not in kept or (row.get("date") or "") >= (kept[k].get("date") or ""):
            kept[k] = row
    return list(kept.values())


def _read(path: Path, tell: Callable[[str], None]) -> list[Row]:
    if path.suffix != ".json":
        return read_rows(path, tell)
    try:
        whole = json.loads(path.read_bytes())
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e.strerror or e}") from e
    except ValueError as e:
        raise FormatError(f"{path} is damaged or is no JSON ({e}); nothing of it was used") from e
    if not isinstance(whole, dict) or not isinstance(whole.get("rows"), list):
        raise FormatError(f'{path} has no list "rows"; it must be a file of benchmark rows')
    shared = {k: whole[k] for k in SHARED if k in whole}
    found = []
    for i, row in enumerate(whole["rows"]):
        try:
            found.append(checked(shared | row if isinstance(row, dict) else row))
        except ValueError as e:
            raise FormatError(f"{path}, row {i} is no row of a benchmark: {e}; nothing of the file was used") from None
    return found


def table(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with the derived columns, in the given order; see the top of this file."""
    t = pd.DataFrame(list(rows), columns=COLUMNS).astype(
        dict.fromkeys(NUMBERS, float) | dict.fromkeys([*NAMES, *TEXTS], object)
    )
    t["ran"] = t["status"] == "ok"
    t["solver_name"] = t["method"].str.extract(r"^([^@=~]*)", expand=False)
    t["close"] = t["method"].str.endswith("~close")
    t["planned_in"] = t["cost"].where(t["solver"].notna())
    plain = t["method"] == "plain"
    models = [t[c] for c in MODEL]
    own = t["peak_mb"].where(plain & t["ran"]).groupby(models).transform("first")
    told = t["plain_mb"].where(t["plain_mb"] > 0).groupby(models).transform("first")
    t["plain_peak_mb"] = own.fillna(told)
    t["share"] = t["peak_mb"] / t["plain_peak_mb"]
    for measure in ("flops", "seconds"):
        t[f"extra_{measure}"] = t[f"{measure}_overhead"].where(~plain, 0.0)
    t["extra_unit"] = t["overhead"].where(t["cost"] == "unit").where(~plain, 0.0)
    return t


def picked(t: pd.DataFrame, cost: str) -> pd.DataFrame:
    """One row per model and method: the row planned in that cost, else one that ran planned in another, else one that
    failed."""
    order = {"flops": 2, "seconds": 3, "unit": 4} | {cost: 0}
    rank = t["cost"].map(order).fillna(1)
    ranked = t.assign(failed=~t["ran"], rank=rank).sort_values(["failed", "rank"], kind="stable")
    return t.loc[ranked.drop_duplicates([*MODEL, "method"]).index].sort_index()
