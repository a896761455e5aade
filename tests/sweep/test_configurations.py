"""Configurations of timm and transformers that nobody tuned for: none wrong, none planned anew in silence, every file binds.

REKINDLE_SWEEP says which of the 280: "0/4", every fourth from the first on, where it is not set; "1/4", "2/4" and "3/4" the
other quarters; "all" all of them. Families stand together in the list, so that every quarter has some of each. Rows stay in
out/sweep-configurations.jsonl: a quarter that was run with the same source is not run again. See run_configurations.py.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import run_configurations as sweep
from configurations import CONFIGURATIONS

pytestmark = pytest.mark.sweep
GIVEN = os.environ.get("REKINDLE_SWEEP") or "0/4"
FIRST, EVERY = (0, 1) if GIVEN == "all" else map(int, GIVEN.split("/"))
NAMES = list(CONFIGURATIONS)[FIRST::EVERY]
CHUNKS = [NAMES[i : i + 8] for i in range(0, len(NAMES), 8)]


@pytest.mark.parametrize("names", CHUNKS, ids=lambda names: names[0])
def test_configurations(names: list[str]) -> None:
    sweep.sweep(names)
    rows: dict[str, dict[str, Any]] = sweep.read()
    faults = {n: sweep.fault(rows[n]) for n in names if sweep.fault(rows[n])}
    assert not faults, "\n".join(f"{n}: {what}: {rows[n]}" for n, what in faults.items())
    planned = [n for n in names if rows[n]["status"] == "equal"]
    assert len(planned) >= len(names) // 4, f"of {names} only {planned} were planned, so that little was compared"
